// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest/fakech"
)

// onEach runs a case on the fake in each dialect and on a real VMM where there is one.
func onEach(t *testing.T, run func(r *rig)) {
	t.Helper()
	for _, dialect := range []string{"v52", "v53", "main"} {
		t.Run(dialect, func(t *testing.T) { run(newRig(t, fakech.Script{Version: dialect})) })
	}
	t.Run("real", func(t *testing.T) {
		binary, version := realBinary(t)
		d := newDriver(t, cloudhypervisor.Options{Binary: binary, Version: version})
		r := rigFor(t, d, func(t *testing.T, ref vmm.Ref) vmm.Config { return directBoot(t, ref, vmmtest.TinyGuest()) })
		r.launch()
		run(r)
	})
}

// definition is what the driver makes of the machine, as the VMM has it.
func (r *rig) definition() api.VMConfig {
	r.Helper()
	r.create()
	info, err := r.raw().Info(r.ctx())
	r.must("ask for the definition", err)
	return info.Config
}

func TestADefinitionIsRecognisedAndNotMadeAnew(t *testing.T) {
	onEach(t, func(r *rig) {
		r.cfg.Ignition = &vmm.Ignition{Transport: vmm.IgnitionSMBIOS, Data: []byte("{}")}
		r.create()
		r.create()
		r.must("boot", r.vm.Boot(r.ctx()))
		r.must("power off", r.vm.PowerOff(r.ctx()))
		r.create()
		log, err := os.ReadFile(filepath.Join(r.cfg.RuntimeDir, "events"))
		r.must("read events", err)
		if strings.Contains(string(log), `"deleted"`) {
			r.Error("the VM was deleted, though its definition did not change")
		}
	})
}

func TestADefinitionThatDiffersIsMadeAnew(t *testing.T) {
	onEach(t, func(r *rig) {
		r.create()
		r.cfg.Disks = r.cfg.Disks[:1]
		r.create()
		if o := r.wantState(vmm.StateIdle); !slices.Equal(o.Disks, []string{r.cfg.Disks[0].ID}) {
			r.Errorf("disks are %v", o.Disks)
		}
		r.must("boot", r.vm.Boot(r.ctx()))
		r.cfg.MemoryBytes *= 2
		r.create()
		r.wantState(vmm.StateRunning)
		info, err := r.raw().Info(r.ctx())
		r.must("info", err)
		if info.Config.Memory.Size == r.cfg.MemoryBytes {
			r.Error("a VM that runs was made anew")
		}
	})
}

func TestADefinitionLeftByAFailedCreateIsRepaired(t *testing.T) {
	serial := func(r *rig) string { return filepath.Join(r.cfg.RuntimeDir, "serial.sock") }
	for name, spoil := range map[string]func(r *rig, c *api.VMConfig){
		"the same over a stale console socket": func(r *rig, _ *api.VMConfig) { staleSocket(r.T, serial(r)) },
		"another one": func(r *rig, c *api.VMConfig) {
			c.Serial.Socket = filepath.Join(r.cfg.RuntimeDir, "none", "serial.sock")
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(r *rig) {
				definition := r.definition()
				r.relaunch()
				spoil(r, &definition)
				if err := r.raw().Create(r.ctx(), definition); err == nil {
					r.Fatal("the spoilt create succeeded")
				}
				// An earlier daemon died here.
				r.wantState(vmm.StateIdle)
				r.boot()
				r.wantState(vmm.StateRunning)
				if c, err := net.Dial("unix", serial(r)); err != nil {
					r.Errorf("nobody listens on the console: %v", err)
				} else {
					c.Close()
				}
			})
		})
	}
}

func TestAConsoleSocketLeftByACrashIsRemoved(t *testing.T) {
	onEach(t, func(r *rig) {
		staleSocket(r.T, filepath.Join(r.cfg.RuntimeDir, "serial.sock"))
		r.boot()
		r.wantState(vmm.StateRunning)
	})
}

func TestAVsockSocketLeftByACrashIsRemoved(t *testing.T) {
	onEach(t, func(r *rig) {
		path := filepath.Join(r.cfg.RuntimeDir, "vsock.sock")
		r.cfg.GuestAgent = true
		r.create()
		staleSocket(r.T, path)
		r.boot()
		r.wantState(vmm.StateRunning)
		// Whatever was in the way, the device is there.
		c, err := net.Dial("unix", path)
		r.must("connect to the vsock", err)
		c.Close()
		r.must("power off", r.vm.PowerOff(r.ctx()))
		l := listen(r.T, path)
		r.wantKind("boot", r.vm.Boot(r.ctx()), machine.FailedPrecondition)
		r.wantState(vmm.StateIdle)
		l.Close()
		r.boot()
		c, err = net.Dial("unix", path)
		r.must("connect to the vsock of a definition that was repaired", err)
		c.Close()
		// A crash, and another launch.
		r.relaunch()
		staleSocket(r.T, path)
		r.must("shut down", r.vm.Shutdown(r.ctx()))
		r.awaitEnd()
		r.launch()
		if _, err := os.Lstat(path); err == nil {
			r.Error("a launch leaves the stale socket")
		}
		r.boot()
		r.must("shut down", r.vm.Shutdown(r.ctx()))
		r.awaitEnd()
		r.must("clean up", r.driver.Cleanup(r.ctx(), r.cfg.Ref))
	})
}

func TestAMachineThatIsOffGetsItsAgentsChannelAtTheNextBoot(t *testing.T) {
	onEach(t, func(r *rig) {
		r.boot()
		r.must("power off", r.vm.PowerOff(r.ctx()))
		r.cfg.GuestAgent = true
		r.boot()
		if _, err := os.Lstat(filepath.Join(r.cfg.RuntimeDir, "vsock.sock")); err != nil {
			r.Error(err)
		}
	})
}

func TestAConsoleSocketOfSomebodyElseIsNotTouched(t *testing.T) {
	onEach(t, func(r *rig) {
		path := filepath.Join(r.cfg.RuntimeDir, "serial.sock")
		l := listen(r.T, path)
		r.wantKind("create", r.vm.Create(r.ctx(), r.cfg), machine.FailedPrecondition)
		r.wantState(vmm.StateEmpty)
		l.Close()
		r.boot()
		r.wantState(vmm.StateRunning)
	})
}

// lock takes a disk as another VMM does.
func lock(t *testing.T, path string) (release func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

func TestABootThatFailedLateCanBeRepeated(t *testing.T) {
	onEach(t, func(r *rig) {
		r.create()
		release := lock(r.T, r.cfg.Disks[0].Path)
		for range 2 {
			err := r.vm.Boot(r.ctx())
			r.wantKind("boot with a locked disk", err, machine.FailedPrecondition)
			if !errors.Is(err, api.ErrLocked) {
				r.Errorf("error is %v, want ErrLocked", err)
			}
			r.wantState(vmm.StateIdle)
		}
		if err := r.raw().Boot(r.ctx()); !errors.Is(err, api.ErrLocked) {
			r.Errorf("error is %v, want ErrLocked: the half VM was left", err)
		}
		release()
		r.must("boot", r.vm.Boot(r.ctx()))
		r.wantState(vmm.StateRunning)
	})
}

func TestAHalfVMOfAnEarlierDaemonIsRepaired(t *testing.T) {
	for name, repair := range map[string]func(r *rig){
		"by booting":        func(*rig) {},
		"by powering off":   func(r *rig) { r.must("power off", r.vm.PowerOff(r.ctx())) },
		"by creating again": func(r *rig) { r.create() },
		"by another definition": func(r *rig) {
			r.cfg.MemoryBytes *= 2
			r.create()
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(r *rig) {
				r.create()
				release := lock(r.T, r.cfg.Disks[0].Path)
				raw := r.raw()
				if err := raw.Boot(r.ctx()); !errors.Is(err, api.ErrLocked) {
					r.Fatalf("error is %v, want ErrLocked", err)
				}
				release()
				if err := raw.Boot(r.ctx()); !errors.Is(err, api.ErrAlreadyCreated) {
					r.Fatalf("error is %v, want ErrAlreadyCreated: there is no half VM", err)
				}
				repair(r)
				r.must("boot", r.vm.Boot(r.ctx()))
				r.wantState(vmm.StateRunning)
			})
		})
	}
}

func TestABootOfAMissingDiskSaysSo(t *testing.T) {
	onEach(t, func(r *rig) {
		r.create()
		path := r.cfg.Disks[1].Path
		r.must("hide disk", os.Rename(path, path+".hidden"))
		err := r.vm.Boot(r.ctx())
		r.wantKind("boot", err, machine.FailedPrecondition)
		if !strings.Contains(err.Error(), path) {
			r.Errorf("%q does not name the disk", err)
		}
		r.must("show disk", os.Rename(path+".hidden", path))
		r.must("boot", r.vm.Boot(r.ctx()))
	})
}

func TestAPausedGuestGoesOn(t *testing.T) {
	onEach(t, func(r *rig) {
		r.boot()
		r.must("pause", r.raw().Pause(r.ctx()))
		r.wantState(vmm.StatePaused)
		r.must("boot", r.vm.Boot(r.ctx()))
		r.wantState(vmm.StateRunning)
	})
}

func TestEveryDestructiveCallAsksForTheUUIDFirst(t *testing.T) {
	r := newRig(t, fakech.Script{})
	r.boot()
	for call, do := range map[string]func(context.Context) error{
		"PUT vm.power-button": r.vm.PowerButton,
		"PUT vm.reboot":       r.vm.Reset,
		"PUT vm.shutdown":     r.vm.PowerOff,
	} {
		before := len(r.calls())
		r.must(call, do(r.ctx()))
		if diff := cmp.Diff([]string{"GET vm.info", call}, r.calls()[before:]); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		r.must("boot", r.vm.Boot(r.ctx()))
	}
}

// The VM is replaced here, not the whole VMM.
func TestAVMOfAnotherMachineIsNotTouched(t *testing.T) {
	onEach(t, func(r *rig) {
		definition := r.definition()
		r.relaunch()
		other := uuid.NewString()
		if definition.Platform.UUID != "" {
			definition.Platform.UUID = other
		} else {
			definition.Platform.SystemUUID = other
		}
		r.must("create another's", r.raw().Create(r.ctx(), definition))
		for name, do := range map[string]func(context.Context) error{
			"create": func(ctx context.Context) error { return r.vm.Create(ctx, r.cfg) },
			"boot":   r.vm.Boot, "power button": r.vm.PowerButton, "reset": r.vm.Reset,
			"power off": r.vm.PowerOff, "shutdown": r.vm.Shutdown,
		} {
			if err := do(r.ctx()); !errors.Is(err, vmm.ErrIdentity) {
				r.Errorf("%s: error is %v, want ErrIdentity", name, err)
			}
		}
		if o := r.wantState(vmm.StateIdle); o.MachineID != other {
			r.Errorf("the VM is of machine %s, want %s", o.MachineID, other)
		}
		if vm, err := r.driver.Connect(r.ctx(), r.cfg.Ref); !errors.Is(err, vmm.ErrIdentity) {
			r.Errorf("connect: %v, error is %v, want ErrIdentity", vm, err)
		}
	})
}

func TestADeviceStaysUntilTheGuestLetsGo(t *testing.T) {
	r := newRig(t, fakech.Script{Eject: "hold"})
	r.boot()
	id := r.cfg.Disks[1].ID
	r.must("remove", r.raw().RemoveDevice(r.ctx(), id))
	if o := r.wantState(vmm.StateRunning); !slices.Contains(o.Disks, id) {
		t.Errorf("disks are %v: %s is still in the guest", o.Disks, id)
	}
	r.must("eject", control(r.cfg.Ref).Eject(id))
	if e := r.awaitEvent(vmm.EventDeviceRemoved); e.Device != id {
		t.Errorf("removed is %q, want %q", e.Device, id)
	}
	if o := r.wantState(vmm.StateRunning); slices.Contains(o.Disks, id) {
		t.Errorf("disks are %v: %s has left", o.Disks, id)
	}
}

func TestAConfigDiskComesLastAndIsNoDiskOfTheMachine(t *testing.T) {
	onEach(t, func(r *rig) {
		r.cfg.Ignition = &vmm.Ignition{Transport: vmm.IgnitionDisk, Data: []byte(`{"ignition":{}}`)}
		r.relaunch()
		r.boot()
		info, err := r.raw().Info(r.ctx())
		r.must("info", err)
		disks := info.Config.Disks
		last := disks[len(disks)-1]
		if len(disks) != len(r.cfg.Disks)+1 || !last.ReadOnly || last.Serial != "ignition" || last.ImageType != api.ImageTypeRaw {
			r.Errorf("disks are %+v", disks)
		}
		if image, err := os.ReadFile(last.Path); err != nil || !strings.Contains(string(image), `{"ignition":{}}`) {
			r.Errorf("the config disk holds %d bytes and not the payload, error %v", len(image), err)
		}
		if o := r.wantState(vmm.StateRunning); len(o.Disks) != len(r.cfg.Disks) {
			r.Errorf("disks are %v", o.Disks)
		}
	})
}

func TestALandlockedVMMRunsItsMachine(t *testing.T) {
	binary, version := realBinary(t)
	// The version of the kernel's Landlock, which the VMM wants to be 3.
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || abi < 3 {
		t.Skipf("SKIPPED: this kernel has Landlock ABI %d (%v), the VMM needs 3", int(abi), errno)
	}
	d := newDriver(t, cloudhypervisor.Options{Binary: binary, Version: version, Landlock: true})
	r := rigFor(t, d, func(t *testing.T, ref vmm.Ref) vmm.Config { return directBoot(t, ref, vmmtest.TinyGuest()) })
	r.launch()
	r.boot()
	r.create()
	r.must("reset", r.vm.Reset(r.ctx()))
	r.must("power off", r.vm.PowerOff(r.ctx()))
	r.must("boot", r.vm.Boot(r.ctx()))
	r.wantState(vmm.StateRunning)
}
