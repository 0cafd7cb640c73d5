// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor_test

import (
	"context"
	"io"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest/fakech"
)

// served is a vhost-user disk whose server answers as told: with answer, or never when it is nil.
func (r *rig) served(answer []byte) vmm.Disk {
	r.Helper()
	socket := filepath.Join(r.cfg.RuntimeDir, "blk.sock")
	l := listen(r.T, socket)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for {
					if _, err := io.ReadFull(c, make([]byte, 12)); err != nil {
						return
					}
					if answer != nil {
						_, _ = c.Write(answer)
					}
				}
			}()
		}
	}()
	return vmm.Disk{ID: vmm.DeviceID("disk", "ceph"), VhostUser: socket}
}

// features is the answer to the first question of the protocol: request 1, flags answer and version 1, 8 bytes.
func features() []byte {
	return append([]byte{1, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0}, make([]byte, 8)...)
}

// sharing launches a machine whose memory other processes may map.
func sharing(t *testing.T, script fakech.Script) *rig {
	t.Helper()
	script.Control, script.VhostUserHandshake = true, true
	d := fakeDriver(t, script, func(o *cloudhypervisor.Options) { o.SharedMemory = true })
	r := rigFor(t, d, fakeConfig)
	r.launch()
	return r
}

func TestAVhostUserDiskComesAndGoesAndIsNotResized(t *testing.T) {
	for _, dialect := range []string{"v52", "v53", "main"} {
		t.Run(dialect, func(t *testing.T) {
			r := sharing(t, fakech.Script{Version: dialect})
			r.boot()
			d := r.served(features())
			r.must("attach", r.plug().AttachDisk(r.ctx(), d))
			r.wantKind("resize", r.plug().ResizeDisk(r.ctx(), d.ID, 2<<20), machine.Unimplemented)
			r.must("detach", r.plug().DetachDisk(r.ctx(), d.ID))
			r.await("it has left", func(o vmm.Observation) bool { return !slices.Contains(o.Disks, d.ID) })
			r.must("power off", r.vm.PowerOff(r.ctx()))
			r.cfg.Disks = append(r.cfg.Disks, d)
			r.boot()
			r.must("power off", r.vm.PowerOff(r.ctx()))
			r.must("resize what is off", r.plug().ResizeDisk(r.ctx(), d.ID, 2<<20))
		})
	}
}

func TestAMachineThatIsDefinedWithAVhostUserDiskSharesItsMemory(t *testing.T) {
	r := newRig(t, fakech.Script{VhostUserHandshake: true})
	d := r.served(features())
	r.boot()
	r.wantKind("attach where the memory is not shared", r.plug().AttachDisk(r.ctx(), d), machine.Unimplemented)
	r.must("power off", r.vm.PowerOff(r.ctx()))
	r.cfg.Disks = append(r.cfg.Disks, d)
	r.boot()
	if o := r.wantState(vmm.StateRunning); !slices.Contains(o.Disks, d.ID) {
		t.Errorf("disks are %v", o.Disks)
	}
}

func TestAServerThatIsSilentOrGoneDoesNotBlockTheVMM(t *testing.T) {
	for name, disk := range map[string]func(r *rig) vmm.Disk{
		"silent":    func(r *rig) vmm.Disk { return r.served(nil) },
		"not vhost": func(r *rig) vmm.Disk { return r.served([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) },
		"nobody there": func(r *rig) vmm.Disk {
			staleSocket(r.T, filepath.Join(r.cfg.RuntimeDir, "blk.sock"))
			return gone(r)
		},
		"not even that": gone,
	} {
		t.Run(name, func(t *testing.T) {
			r := sharing(t, fakech.Script{})
			r.boot()
			d := disk(r)
			start := time.Now()
			r.wantKind("attach", r.plug().AttachDisk(r.ctx(), d), machine.Unavailable)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			r.wantKind("attach in a hurry", r.plug().AttachDisk(ctx, d), machine.Unavailable)
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
			if n := r.count("PUT vm.add-disk"); n != 0 {
				t.Error("the VMM was asked, which blocks it")
			}
			r.must("power off", r.vm.PowerOff(r.ctx()))
			r.must("attach while it is off", attachedCold(r, d))
			r.wantKind("boot", r.vm.Boot(r.ctx()), machine.Unavailable)
			r.wantState(vmm.StateIdle)
		})
	}
}

func gone(r *rig) vmm.Disk {
	return vmm.Disk{ID: vmm.DeviceID("disk", "ceph"), VhostUser: filepath.Join(r.cfg.RuntimeDir, "blk.sock")}
}

// attachedCold defines the machine with the disk.
func attachedCold(r *rig, d vmm.Disk) error {
	r.cfg.Disks = append(r.cfg.Disks, d)
	return r.vm.Create(r.ctx(), r.cfg)
}
