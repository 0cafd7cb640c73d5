// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest/fakech"
)

func (r *rig) plug() vmm.Plugger {
	r.Helper()
	p, ok := r.vm.(vmm.Plugger)
	if !ok {
		r.Fatal("the VM is no Plugger")
	}
	return p
}

// disk makes one more disk of 1 MiB.
func (r *rig) disk(name string) vmm.Disk {
	r.Helper()
	path := filepath.Join(r.cfg.StateDir, name+".raw")
	r.must("make a disk", os.WriteFile(path, nil, 0o600))
	r.must("make a disk", os.Truncate(path, 1<<20))
	return vmm.Disk{ID: vmm.DeviceID("disk", name), Path: path, Serial: name}
}

func (r *rig) nic(name string) vmm.NIC {
	return vmm.NIC{ID: vmm.DeviceID("nic", name), MAC: machine.MAC(r.cfg.MachineID, name), Kind: vmm.NICTap, Tap: "tap1"}
}

// count tells how often the VMM was called so.
func (r *rig) count(call string) (n int) {
	for _, c := range r.calls() {
		if c == call {
			n++
		}
	}
	return n
}

func (r *rig) await(what string, done func(o vmm.Observation) bool) {
	r.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		o, err := r.vm.Inspect(r.ctx())
		r.must("inspect", err)
		if done(o) {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("%s: not so, but %+v", what, o)
		}
	}
}

// onDialects runs a case on a fake of each version.
func onDialects(t *testing.T, script fakech.Script, run func(r *rig, dialect string)) {
	t.Helper()
	for _, dialect := range []string{"v52", "v53", "main"} {
		t.Run(dialect, func(t *testing.T) {
			script.Version = dialect
			run(newRig(t, script), dialect)
		})
	}
}

func TestAGuestIsAskedAgainWhereTheVersionLetsIt(t *testing.T) {
	onDialects(t, fakech.Script{Eject: "hold"}, func(r *rig, dialect string) {
		r.boot()
		id := r.cfg.Disks[1].ID
		for range 3 {
			r.must("detach", r.plug().DetachDisk(r.ctx(), id))
		}
		want := 3
		if dialect == "v53" {
			want = 1 // it would refuse, and ask nobody
		}
		if n := r.count("PUT vm.remove-device"); n != want {
			r.Errorf("the removal was asked for %d times, want %d", n, want)
		}
		r.wantKind("resize what is leaving", r.plug().ResizeDisk(r.ctx(), id, 2<<20), machine.FailedPrecondition)
	})
}

func TestADeviceThatLeavesLateIsThereUntilThen(t *testing.T) {
	onDialects(t, fakech.Script{EjectMS: 200}, func(r *rig, _ string) {
		r.boot()
		id := r.cfg.Disks[1].ID
		r.must("detach", r.plug().DetachDisk(r.ctx(), id))
		o := r.wantState(vmm.StateRunning)
		if !slices.Contains(o.Disks, id) || !slices.Equal(o.Leaving, []string{id}) {
			r.Errorf("disks are %v, leaving %v", o.Disks, o.Leaving)
		}
		if e := r.awaitEvent(vmm.EventDeviceRemoved); e.Device != id {
			r.Errorf("%s was removed", e.Device)
		}
		if o := r.wantState(vmm.StateRunning); slices.Contains(o.Disks, id) || o.Leaving != nil {
			r.Errorf("disks are %v, leaving %v", o.Disks, o.Leaving)
		}
	})
}

func TestAFullBusIsSeenBeforeADeviceIsLostOnIt(t *testing.T) {
	onDialects(t, fakech.Script{}, func(r *rig, _ string) {
		r.boot()
		raw := r.raw()
		for i := 0; ; i++ {
			d := r.disk(fmt.Sprintf("f%d", i))
			info, err := raw.Info(r.ctx())
			r.must("info", err)
			taken := 0
			for _, n := range info.DeviceTree {
				if n.PCIBDF != nil {
					taken++
				}
			}
			if taken == 31 {
				break
			}
			// Rate groups and such have no slot; network interfaces have, and there are fewer of them than the limit.
			if i%2 == 0 || len(info.Config.Disks) > 19 {
				r.must("attach NIC", rawNIC(r, fmt.Sprintf("other%d", i)))
				continue
			}
			r.must("attach", r.plug().AttachDisk(r.ctx(), d))
		}
		before := r.count("PUT vm.add-disk")
		d := r.disk("last")
		err := r.plug().AttachDisk(r.ctx(), d)
		r.wantKind("attach to a full bus", err, machine.Exhausted)
		if !strings.Contains(err.Error(), "31") && !strings.Contains(err.Error(), "20") {
			r.Errorf("%q names no limit", err)
		}
		if n := r.count("PUT vm.add-disk"); n != before {
			r.Error("the VMM was asked, which keeps half a device")
		}
		r.must("detach", r.plug().DetachDisk(r.ctx(), vmm.DeviceID("disk", "f1")))
		r.await("one has left", func(o vmm.Observation) bool { return o.Leaving == nil })
		r.must("attach", r.plug().AttachDisk(r.ctx(), d))
	})
}

// rawNIC takes a slot with something that is none of the machine's.
func rawNIC(r *rig, id string) error {
	_, err := r.raw().AddNet(r.ctx(), api.Net{ID: id, Tap: "tap9"})
	return err
}

func TestWhatIsRefusedLeavesTheMachineAsItWas(t *testing.T) {
	r := newRig(t, fakech.Script{CheckTapFDs: true})
	r.cfg.NICs = nil
	r.boot()
	before := r.wantState(vmm.StateRunning)
	own := descriptors("self")
	for range 3 {
		if err := r.plug().AttachNIC(r.ctx(), r.nic("late")); err == nil {
			t.Fatal("a descriptor that is no tap was taken")
		}
	}
	if after := r.wantState(vmm.StateRunning); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if n := len(descriptors("self")); n > len(own) {
		t.Errorf("this process had %d descriptors open, now %d", len(own), n)
	}
}

func TestANetworkInterfaceThatFailedToBootIsDefinedAnew(t *testing.T) {
	r := newRig(t, fakech.Script{CheckTapFDs: true})
	r.create()
	if err := r.vm.Boot(r.ctx()); err == nil {
		t.Fatal("it booted with a descriptor that is no tap")
	}
	if o := r.wantState(vmm.StateIdle); o.NICs != nil {
		t.Errorf("the VMM keeps %v, so the fake is kinder than the real one", o.NICs)
	}
	r.create()
	if o := r.wantState(vmm.StateIdle); len(o.NICs) != len(r.cfg.NICs) {
		t.Errorf("network interfaces are %v", o.NICs)
	}
}

func TestATapIsOpenedByTheVMMOnlyWhereItMustBe(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		byName bool
	}{
		"it is passed open":     {nil, false},
		"it may not be opened":  {cloudhypervisor.ErrTapByName, true},
		"there is no such tap":  {cloudhypervisor.ErrNoTap, false},
		"it cannot be attached": {fs.ErrInvalid, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := fakeDriver(t, fakech.Script{Control: true}, func(o *cloudhypervisor.Options) {
				o.OpenTap = func(name string, queues int) ([]*os.File, error) {
					if c.err != nil {
						return nil, fmt.Errorf("%s: %w", name, c.err)
					}
					return openNothing(name, queues)
				}
			})
			r := rigFor(t, d, fakeConfig)
			r.cfg.CPUs, r.cfg.NICs[0].Queues = 2, 2
			r.launch()
			if c.err != nil && !c.byName {
				r.wantKind("create", r.vm.Create(r.ctx(), r.cfg), machine.FailedPrecondition)
				r.wantState(vmm.StateEmpty)
				r.cfg.NICs = nil
				r.boot()
				r.wantKind("attach", r.plug().AttachNIC(r.ctx(), r.nic("late")), machine.FailedPrecondition)
				return
			}
			r.boot()
			r.must("attach", r.plug().AttachNIC(r.ctx(), r.nic("late")))
			info, err := r.raw().Info(r.ctx())
			r.must("info", err)
			for i, n := range info.Config.Net {
				want := 2 - i // queues of the first one
				if (n.Tap != "") != c.byName || !c.byName && len(n.FDs) != want || n.NumQueues != 2*want {
					t.Errorf("network interface %+v", n)
				}
			}
			// The definition is recognised either way.
			r.must("power off", r.vm.PowerOff(r.ctx()))
			r.cfg.NICs = append(r.cfg.NICs, r.nic("late"))
			deletes := r.count("PUT vm.delete")
			r.create()
			if r.count("PUT vm.delete") != deletes {
				t.Error("the definition was made anew")
			}
		})
	}
}

func TestADiskNeverShrinks(t *testing.T) {
	onDialects(t, fakech.Script{}, func(r *rig, _ string) {
		r.boot()
		d := r.disk("grows")
		r.must("attach", r.plug().AttachDisk(r.ctx(), d))
		for _, size := range []int64{512, 1<<20 - 512, 0, -512, 2<<20 + 1} {
			r.wantKind(fmt.Sprintf("resize to %d", size), r.plug().ResizeDisk(r.ctx(), d.ID, size), machine.Invalid)
		}
		if n := r.count("PUT vm.resize-disk"); n != 0 {
			r.Errorf("the VMM was asked %d times", n)
		}
		if st, err := os.Stat(d.Path); err != nil || st.Size() != 1<<20 {
			r.Errorf("the file is %v, error %v", st, err)
		}
		r.must("pause", r.raw().Pause(r.ctx()))
		r.wantKind("resize while paused", r.plug().ResizeDisk(r.ctx(), d.ID, 2<<20), machine.FailedPrecondition)
	})
}

// qcow2 writes the header of an image, which is all that a fake looks at.
func qcow2(t *testing.T, path string, size, backing uint64) {
	t.Helper()
	image := make([]byte, 64<<10)
	copy(image, "QFI\xfb")
	binary.BigEndian.PutUint32(image[4:], 3)
	binary.BigEndian.PutUint64(image[8:], backing)
	binary.BigEndian.PutUint32(image[20:], 16)
	binary.BigEndian.PutUint64(image[24:], size)
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAQcow2ImageIsGrownByTheVMMUnlessItHasABackingFile(t *testing.T) {
	onDialects(t, fakech.Script{}, func(r *rig, _ string) {
		r.boot()
		plain, overlay := r.disk("plain"), r.disk("overlay")
		plain.Format, overlay.Format = vmm.FormatQcow2, vmm.FormatQcow2
		qcow2(r.T, plain.Path, 4<<20, 0)
		qcow2(r.T, overlay.Path, 4<<20, 104)
		for _, d := range []vmm.Disk{plain, overlay} {
			r.must("attach", r.plug().AttachDisk(r.ctx(), d))
		}
		r.wantKind("shrink", r.plug().ResizeDisk(r.ctx(), plain.ID, 2<<20), machine.Invalid)
		r.must("resize", r.plug().ResizeDisk(r.ctx(), plain.ID, 8<<20))
		head, err := os.ReadFile(plain.Path)
		r.must("read image", err)
		if size := binary.BigEndian.Uint64(head[24:]); size != 8<<20 {
			r.Errorf("the image is of %d bytes", size)
		}
		r.wantKind("resize an overlay", r.plug().ResizeDisk(r.ctx(), overlay.ID, 8<<20), machine.Unimplemented)
		raw := r.disk("raw")
		qcow2(r.T, raw.Path, 4<<20, 0)
		r.wantKind("attach a qcow2 image as raw", r.plug().AttachDisk(r.ctx(), raw), machine.Invalid)
		if o := r.wantState(vmm.StateRunning); slices.Contains(o.Disks, raw.ID) {
			r.Errorf("disks are %v", o.Disks)
		}
	})
}

func TestLandlockIsToldBeforeTheVMMStumbles(t *testing.T) {
	allowed := t.TempDir()
	d := fakeDriver(t, fakech.Script{Control: true, AllowVFIO: true}, func(o *cloudhypervisor.Options) {
		o.Landlock, o.LandlockPaths = true, []string{allowed}
	})
	r := rigFor(t, d, fakeConfig)
	r.launch()
	r.boot()
	outside, inside := r.disk("outside"), r.disk("inside")
	inside.Path = filepath.Join(allowed, "inside.raw")
	r.must("make a disk", os.WriteFile(inside.Path, make([]byte, 1<<20), 0o600))
	r.must("attach", r.plug().AttachDisk(r.ctx(), inside))
	err := r.plug().AttachDisk(r.ctx(), outside)
	r.wantKind("attach outside", err, machine.Unimplemented)
	if !strings.Contains(err.Error(), outside.Path) {
		t.Errorf("%q does not name the path", err)
	}
	r.wantKind("attach a PCI function", r.plug().AttachNIC(r.ctx(), function("0000:00:01.0")), machine.Unimplemented)
}

func function(address string) vmm.NIC {
	return vmm.NIC{ID: vmm.DeviceID("nic", "vf"), Kind: vmm.NICPCI, PCI: address}
}

func TestAPCIFunctionIsANetworkInterface(t *testing.T) {
	real, err := filepath.Glob("/sys/bus/pci/devices/*")
	if err != nil || len(real) == 0 {
		t.Skip("SKIPPED: this host shows no PCI bus, so no function of it is passed to a fake")
	}
	r := newRig(t, fakech.Script{AllowVFIO: true})
	nic := function(filepath.Base(real[0]))
	r.boot()
	r.must("attach", r.plug().AttachNIC(r.ctx(), nic))
	r.must("attach", r.plug().AttachNIC(r.ctx(), nic))
	info, err := r.raw().Info(r.ctx())
	r.must("info", err)
	if d := info.Config.Devices; len(d) != 1 || d[0].Path != real[0] {
		t.Errorf("devices are %+v", d)
	}
	other := nic
	other.ID = vmm.DeviceID("nic", "other")
	r.wantKind("attach the same function", r.plug().AttachNIC(r.ctx(), other), machine.AlreadyExists)
	r.must("power off", r.vm.PowerOff(r.ctx()))
	r.cfg.NICs = append(r.cfg.NICs, nic)
	r.boot()
	if o := r.wantState(vmm.StateRunning); !slices.Contains(o.NICs, nic.ID) {
		t.Errorf("network interfaces are %v", o.NICs)
	}
	r.must("detach", r.plug().DetachNIC(r.ctx(), nic.ID))
	r.await("it has left", func(o vmm.Observation) bool { return !slices.Contains(o.NICs, nic.ID) })
}

func TestAHalfVMTakesNoDevicesBeforeItIsEnded(t *testing.T) {
	onEach(t, func(r *rig) {
		r.create()
		release := lock(r.T, r.cfg.Disks[0].Path)
		if err := r.raw().Boot(r.ctx()); err == nil {
			r.Fatal("it booted with a locked disk")
		}
		release()
		d := r.disk("late")
		r.must("attach", r.plug().AttachDisk(r.ctx(), d))
		r.must("detach", r.plug().DetachDisk(r.ctx(), r.cfg.Disks[1].ID))
		if o := r.wantState(vmm.StateIdle); !slices.Contains(o.Disks, d.ID) || len(o.Disks) != len(r.cfg.Disks) || o.Leaving != nil {
			r.Errorf("disks are %v, leaving %v", o.Disks, o.Leaving)
		}
		r.must("boot", r.vm.Boot(r.ctx()))
		r.wantState(vmm.StateRunning)
	})
}

func TestADiskThatIsLockedIsRefusedAndLeavesNothing(t *testing.T) {
	onEach(t, func(r *rig) {
		r.boot()
		d := r.disk("locked")
		release := lock(r.T, d.Path)
		for range 2 {
			r.wantKind("attach", r.plug().AttachDisk(r.ctx(), d), machine.FailedPrecondition)
		}
		if o := r.wantState(vmm.StateRunning); slices.Contains(o.Disks, d.ID) {
			r.Errorf("disks are %v", o.Disks)
		}
		release()
		r.must("attach", r.plug().AttachDisk(r.ctx(), d))
	})
}

// An answer is lost, or the daemon is killed before it comes: a new connection sees what is, and the same call again
// ends in what was wanted.
func TestACallCutOffInTheMiddleIsRepeatedByALaterDaemon(t *testing.T) {
	for _, kind := range []fakech.FaultKind{fakech.FaultReset, fakech.FaultClose, fakech.FaultSilence} {
		for endpoint, do := range map[string]func(*rig, context.Context) error{
			"vm.add-disk":      func(r *rig, ctx context.Context) error { return r.plug().AttachDisk(ctx, r.disk("late")) },
			"vm.add-net":       func(r *rig, ctx context.Context) error { return r.plug().AttachNIC(ctx, r.nic("late")) },
			"vm.remove-device": func(r *rig, ctx context.Context) error { return r.plug().DetachDisk(ctx, r.cfg.Disks[1].ID) },
			"vm.resize-disk":   func(r *rig, ctx context.Context) error { return r.plug().ResizeDisk(ctx, r.cfg.Disks[1].ID, 2<<20) },
		} {
			t.Run(string(kind)+" of "+endpoint, func(t *testing.T) {
				r := newRig(t, fakech.Script{})
				r.boot()
				r.arm(fakech.Fault{Kind: kind, Endpoint: endpoint, DelayMS: 2000})
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				if err := do(r, ctx); err != nil {
					r.wantKind(endpoint, err, machine.Unavailable)
				}
				r.must("close", r.vm.Close())
				r.connect()
				r.must(endpoint+" again", do(r, r.ctx()))
				r.await("it is so", func(o vmm.Observation) bool {
					switch endpoint {
					case "vm.add-disk":
						return slices.Contains(o.Disks, vmm.DeviceID("disk", "late"))
					case "vm.add-net":
						return slices.Contains(o.NICs, vmm.DeviceID("nic", "late"))
					case "vm.remove-device":
						return !slices.Contains(o.Disks, r.cfg.Disks[1].ID)
					}
					return true
				})
			})
		}
	}
}

func TestAThousandCyclesLeakNothing(t *testing.T) {
	const cycles = 1000
	r := newRig(t, fakech.Script{})
	r.boot()
	disk, nic := r.disk("again"), r.nic("again")
	cycle := func() {
		r.must("attach disk", r.plug().AttachDisk(r.ctx(), disk))
		r.must("attach NIC", r.plug().AttachNIC(r.ctx(), nic))
		r.must("detach disk", r.plug().DetachDisk(r.ctx(), disk.ID))
		r.must("detach NIC", r.plug().DetachNIC(r.ctx(), nic.ID))
		r.await("both have left", func(o vmm.Observation) bool {
			return !slices.Contains(o.Disks, disk.ID) && !slices.Contains(o.NICs, nic.ID)
		})
	}
	cycle()
	pid := fmt.Sprint(r.proc.Identity().PID)
	own, its, files, children := descriptors("self"), descriptors(pid), filesIn(t, filepath.Dir(r.cfg.StateDir)), childrenOf(pid)
	start := time.Now()
	for range cycles {
		cycle()
	}
	t.Logf("%d cycles took %s", cycles, time.Since(start).Round(time.Millisecond))
	r.await("descriptors are back", func(vmm.Observation) bool {
		return len(descriptors("self")) <= len(own)+1 && len(descriptors(pid)) <= len(its)+1 // the very connections that ask
	})
	if after := filesIn(t, filepath.Dir(r.cfg.StateDir)); len(after) != len(files) {
		t.Errorf("files before %v, after %v", files, after)
	}
	if after := childrenOf(pid); after != children {
		t.Errorf("the VMM had %d threads and children, now %d", children, after)
	}
}

func descriptors(pid string) []string {
	links, _ := filepath.Glob("/proc/" + pid + "/fd/*")
	return links
}

func filesIn(t *testing.T, dir string) (files []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

// childrenOf counts the processes that a process has started.
func childrenOf(pid string) int {
	lists, _ := filepath.Glob("/proc/" + pid + "/task/*/children")
	n := 0
	for _, l := range lists {
		text, _ := os.ReadFile(l)
		n += len(bytes.Fields(text))
	}
	return n
}
