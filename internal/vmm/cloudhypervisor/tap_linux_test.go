// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest/fakech"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/networktest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
)

// onTaps runs a case in a network namespace of its own, with taps that the driver opens by itself, on fakes and on a
// real VMM where there is one.
func onTaps(t *testing.T, run func(r *rig)) {
	t.Helper()
	if !networktest.InNamespace(t) {
		return
	}
	bare := func(t *testing.T, ref vmm.Ref) vmm.Config {
		cfg := directBoot(t, ref, vmmtest.TinyGuest())
		cfg.CPUs = 2
		return cfg
	}
	for _, dialect := range []string{"v52", "v53", "main"} {
		t.Run(dialect, func(t *testing.T) {
			script := fakech.Script{Version: dialect, Control: true, CheckTaps: true, CheckTapFDs: true}
			r := rigFor(t, fakeDriver(t, script, func(o *cloudhypervisor.Options) { o.OpenTap = nil }), bare)
			r.launch()
			run(r)
		})
	}
	t.Run("real", func(t *testing.T) {
		binary, version := realBinary(t)
		r := rigFor(t, newDriver(t, cloudhypervisor.Options{Binary: binary, Version: version}), bare)
		r.launch()
		run(r)
	})
}

// tap makes a tap and an interface on it.
func (r *rig) tap(name string, queues int) vmm.NIC {
	r.Helper()
	nic := vmm.NIC{ID: vmm.DeviceID("nic", name), MAC: machine.MAC(r.cfg.MachineID, name), Kind: vmm.NICTap, Tap: tap.Name(r.cfg.MachineID, name)}
	d, err := tap.Kernel{}.Ensure(r.ctx(), tap.Spec{Name: nic.Tap, Owner: r.cfg.MachineID, Queues: queues, MTU: 1450})
	r.must("make a tap", err)
	if nic.MTU = 1450; d.MultiQueue {
		nic.Queues = queues
	}
	return nic
}

// queuesOf counts the descriptors of the VMM that lead to a tap.
func (r *rig) queuesOf(name string) (n int) {
	pid := r.proc.Identity().PID
	infos, err := os.ReadDir(fmt.Sprintf("/proc/%d/fdinfo", pid))
	r.must("list descriptors", err)
	for _, i := range infos {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, i.Name()))
		if err == nil && strings.Contains(string(text), "iff:\t"+name+"\n") {
			n++
		}
	}
	return n
}

// goes takes an interface out of a guest that may be deaf.
func (r *rig) goes(id string) {
	r.Helper()
	r.must("detach", r.plug().DetachNIC(r.ctx(), id))
	if o, err := r.vm.Inspect(r.ctx()); err == nil && slices.Contains(o.Leaving, id) {
		r.must("reset", r.vm.Reset(r.ctx()))
	}
	r.await("it has left", func(o vmm.Observation) bool { return !slices.Contains(o.NICs, id) })
}

func TestRealTapsGoToTheVMMOpen(t *testing.T) {
	onTaps(t, func(r *rig) {
		one, two := r.tap("one", 1), r.tap("two", 2)
		r.cfg.NICs = []vmm.NIC{one, two}
		r.boot()
		info, err := r.raw().Info(r.ctx())
		r.must("info", err)
		for i, want := range []int{1, 2} {
			if n := info.Config.Net[i]; len(n.FDs) != want || n.Tap != "" || n.NumQueues != 2*want {
				r.Errorf("network interface %+v, want %d descriptors", n, want)
			}
		}
		r.must("reset", r.vm.Reset(r.ctx()))
		r.must("power off", r.vm.PowerOff(r.ctx()))
		r.boot()
		late := r.tap("late", 2)
		for range 3 {
			r.must("attach", r.plug().AttachNIC(r.ctx(), late))
			r.must("attach", r.plug().AttachNIC(r.ctx(), late))
			r.goes(late.ID)
			if n := r.queuesOf(late.Tap); n != 0 {
				r.Errorf("the VMM holds %d descriptors of a tap that has left", n)
			}
		}
		// One that is in use is refused by its name, without a word to the VMM.
		other := one
		other.ID = vmm.DeviceID("nic", "other")
		err = r.plug().AttachNIC(r.ctx(), other)
		r.wantKind("attach a tap twice", err, machine.FailedPrecondition)
		if !strings.Contains(err.Error(), one.Tap) {
			r.Errorf("%q does not name the tap", err)
		}
		other.MAC, other.Queues, other.Tap = late.MAC, 0, late.Tap
		r.wantKind("attach with one queue a tap that has more", r.plug().AttachNIC(r.ctx(), other), machine.FailedPrecondition)
		other.Queues, other.MTU = 2, 1500
		r.wantKind("attach with another MTU", r.plug().AttachNIC(r.ctx(), other), machine.FailedPrecondition)
		other.Tap, other.MTU = "chpnone", 0
		r.wantKind("attach what is not there", r.plug().AttachNIC(r.ctx(), other), machine.FailedPrecondition)
		other.Queues = 3
		r.wantKind("attach with more queues than CPUs", r.plug().AttachNIC(r.ctx(), other), machine.Invalid)
		if o := r.wantState(vmm.StateRunning); !slices.Equal(o.NICs, []string{one.ID, two.ID}) {
			r.Errorf("network interfaces are %v", o.NICs)
		}
	})
}

// A tap that was removed and made again under its name is another one, and the descriptors of the old one make a boot
// fail.
func TestATapThatWasMadeAnewIsNoticed(t *testing.T) {
	onTaps(t, func(r *rig) {
		nic := r.tap("one", 1)
		r.cfg.NICs = []vmm.NIC{nic}
		r.boot()
		r.must("power off", r.vm.PowerOff(r.ctx()))
		r.must("remove tap", tap.Kernel{}.Remove(r.ctx(), nic.Tap, r.cfg.MachineID))
		r.tap("one", 1)
		r.create()
		r.must("boot", r.vm.Boot(r.ctx()))
		if n := r.queuesOf(nic.Tap); n == 0 {
			r.Error("no descriptor of the VMM leads to the tap")
		}
		// And one that vanishes between definition and boot says so.
		r.must("power off", r.vm.PowerOff(r.ctx()))
		r.create()
		r.must("remove tap", tap.Kernel{}.Remove(r.ctx(), nic.Tap, r.cfg.MachineID))
		r.wantKind("boot", r.vm.Boot(r.ctx()), machine.FailedPrecondition)
		r.tap("one", 1)
		r.boot()
		r.wantState(vmm.StateRunning)
	})
}

func TestTheTapOfARefusedInterfaceIsFreeAgain(t *testing.T) {
	onTaps(t, func(r *rig) {
		nic := r.tap("one", 2)
		r.boot()
		bad := nic
		bad.MAC = "no MAC"
		for range 2 {
			if err := r.plug().AttachNIC(r.ctx(), bad); err == nil {
				r.Fatal("an interface without a MAC was taken")
			}
		}
		r.must("attach", r.plug().AttachNIC(r.ctx(), nic))
		if o := r.wantState(vmm.StateRunning); !slices.Contains(o.NICs, nic.ID) {
			r.Errorf("network interfaces are %v", o.NICs)
		}
	})
}
