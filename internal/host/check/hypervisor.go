// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
)

// missing tells how bad it is that something of a driver is not there: a failure if that driver is configured or
// nothing else is there, a warning if the better hypervisor is missed, nothing if the other is used anyway.
func (f *found) missing(driver string) Status {
	switch want := f.Hypervisor.Hypervisor; {
	case want == driver:
		return Fail
	case want != "" && want != host.Auto:
		return OK
	case f.decisionErr != nil:
		return Fail
	case driver == host.CloudHypervisor:
		return Warn
	default:
		return OK
	}
}

// used reports whether a driver is the one that will run machines.
func (f *found) used(driver string) bool { return f.decisionErr == nil && f.decision.Driver == driver }

func (f *found) kvmDevice() []Item {
	if !f.onLinux() {
		return nil
	}
	const name = "kvm"
	accelerator := f.Hypervisor.Accelerator
	switch {
	case f.kvm.Usable:
		return one(name, OK, f.kvm.Reason, "")
	case f.Hypervisor.Hypervisor == host.CloudHypervisor:
		return one(name, Fail, f.kvm.Reason, "Cloud Hypervisor is configured and needs KVM; use another server or "+
			"hypervisor: qemu")
	case accelerator == host.AccelKVM:
		return one(name, Fail, f.kvm.Reason, "accelerator kvm is configured; use another server or accelerator: auto")
	case accelerator == host.AccelTCG:
		return one(name, OK, f.kvm.Reason+"; not needed, as accelerator tcg is configured", "")
	default:
		return one(name, Warn, f.kvm.Reason, "use a server whose processor runs guests: bare metal with virtualisation "+
			"switched on in its firmware, or a virtual machine with nested virtualisation")
	}
}

func (f *found) cloudHypervisorItems() []Item {
	if !f.onLinux() {
		return nil
	}
	const driver = host.CloudHypervisor
	items := f.binary(driver, f.cloudHypervisor, f.cloudHypervisorErr)
	if f.cloudHypervisorErr != nil && f.missing(driver) != Fail {
		return items // without the binary its firmware is of no interest
	}
	return append(items, f.firmware(driver, f.cloudHypervisorFW, f.cloudHypervisorFWErr)...)
}

func (f *found) qemuItems() []Item {
	const driver = host.QEMU
	items := f.binary(driver, f.qemu, f.qemuErr)
	if f.qemuErr != nil && f.missing(driver) != Fail {
		return items
	}
	items = append(items, f.firmware(driver, f.qemuFW, f.qemuFWErr)...)
	if !f.used(driver) {
		return items
	}
	const name = "qemu-accelerator"
	switch accel := f.decision.Accelerator; {
	case accel != host.AccelTCG:
		return append(items, one(name, OK, accel, "")...)
	case f.Hypervisor.Accelerator == host.AccelTCG:
		return append(items, one(name, OK, "tcg (translation without help of the processor), as configured", "")...)
	default:
		return append(items, one(name, Warn, "tcg: guests are translated without help of the processor and run 10 to 50 "+
			"times slower", "fine for development and tests; production needs KVM (or HVF on macOS)")...)
	}
}

func (f *found) binary(driver string, b host.Binary, err error) []Item {
	if err != nil {
		return one(driver, f.missing(driver), f.notFound(driver, err), hintOf(err))
	}
	detail := fmt.Sprintf("%s at %s", b.Version, b.Path)
	if b.Advice != "" && f.missing(driver) != OK {
		return one(driver, Warn, detail, b.Advice)
	}
	return one(driver, OK, detail, "")
}

func (f *found) firmware(driver string, fw host.FirmwareFiles, err error) []Item {
	name := driver + "-firmware"
	if err != nil {
		s := f.missing(driver)
		if f.used(driver) || s == Fail && f.decisionErr == nil {
			s = Warn // images that bring a kernel boot without it
		}
		hint := hintOf(err)
		if s != OK {
			hint = strings.TrimPrefix(hint+"; images that bring their own kernel boot without it", "; ")
		}
		return one(name, s, f.notFound(driver, err), hint)
	}
	detail := fw.Code
	if fw.Vars != "" {
		detail += " with variables from " + fw.Vars
	}
	return one(name, OK, detail, "")
}

// notFound shortens the error where nobody needs the list of all places.
func (f *found) notFound(driver string, err error) string {
	if f.missing(driver) == OK {
		return "not found; not needed, as " + f.instead() + " is used"
	}
	var missing *host.NotFoundError
	if !errors.As(err, &missing) {
		return err.Error()
	}
	var absent, bad []string
	for _, s := range missing.Searched {
		switch {
		case s.Path == "PATH":
			absent = append(absent, s.Path)
		case s.Problem == "not there" && len(missing.Searched) > 1:
			absent = append(absent, filepath.Dir(s.Path))
		default:
			bad = append(bad, s.Path+": "+s.Problem)
		}
	}
	if len(bad) > 0 {
		return strings.Join(bad, "; ")
	}
	return "not found in " + strings.Join(distinct(absent), ", ")
}

// distinct drops repetitions and keeps the order.
func distinct(all []string) []string {
	var once []string
	for _, s := range all {
		if !slices.Contains(once, s) {
			once = append(once, s)
		}
	}
	return once
}

func (f *found) instead() string {
	if f.decisionErr == nil {
		return f.decision.Driver
	}
	return f.Hypervisor.Hypervisor
}

func hintOf(err error) string {
	var missing *host.NotFoundError
	if errors.As(err, &missing) {
		return missing.Hint
	}
	return ""
}

func (f *found) choice() []Item {
	const name = "hypervisor"
	if f.decisionErr != nil {
		return one(name, Fail, f.noChoice(), "see the failures above"+f.wayOut())
	}
	d := f.decision
	detail := fmt.Sprintf("%s %s with %s", d.Driver, d.Binary.Version, d.Accelerator)
	switch want := f.Hypervisor.Hypervisor; {
	case want == d.Driver:
		detail += ", as configured"
	case d.Driver == host.CloudHypervisor:
		detail += ": binary, firmware and KVM are all there"
	case !f.onLinux():
		detail += ": Cloud Hypervisor needs Linux"
	default:
		detail += ", as Cloud Hypervisor cannot be used here: " + strings.Join(f.lacking(), ", ")
	}
	return one(name, OK, detail, "")
}

// noChoice says in short what the items above say at length.
func (f *found) noChoice() string {
	detail := "none can be used"
	want := f.Hypervisor.Hypervisor
	if want != "" && want != host.Auto {
		detail = want + " cannot be used"
	}
	if f.qemuErr == nil && want != host.CloudHypervisor { // QEMU is there, so it failed for its accelerator
		detail += ": accelerator " + f.Hypervisor.Accelerator + " is configured and cannot be had"
	}
	return detail
}

func (f *found) wayOut() string {
	switch want := f.Hypervisor.Hypervisor; {
	case f.qemuErr == nil && want != host.CloudHypervisor:
		return ", or configure accelerator: auto"
	case want != "" && want != host.Auto:
		return ", or configure hypervisor: auto"
	default:
		return "; installing QEMU is the quickest way to a first machine"
	}
}

// lacking names what keeps Cloud Hypervisor from being chosen; the items above give the details.
func (f *found) lacking() []string {
	var why []string
	if a := f.Hypervisor.Accelerator; a != "" && a != host.Auto && a != host.AccelKVM {
		why = append(why, "accelerator "+a+" is configured")
	}
	if f.Hypervisor.Arch != "" && f.Hypervisor.Arch != f.facts.Arch {
		why = append(why, "guests are "+f.Hypervisor.Arch)
	}
	if f.cloudHypervisorErr != nil {
		why = append(why, "no usable binary")
	} else if f.cloudHypervisorFWErr != nil {
		why = append(why, "no usable firmware")
	}
	if !f.kvm.Usable {
		why = append(why, "no usable KVM")
	}
	return why
}
