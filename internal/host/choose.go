// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Wants is what the configuration says about the hypervisor. Empty values mean "auto" or "search for it".
type Wants struct {
	Hypervisor              string // auto, cloud-hypervisor, qemu
	Accelerator             string // auto, kvm, hvf, tcg; for QEMU
	Arch                    string // of the guests, as GOARCH; empty: the server's
	CloudHypervisorBinary   string
	CloudHypervisorFirmware string
	QEMUBinary              string
	QEMUFirmware            string
}

// Decision is the hypervisor to use and why.
type Decision struct {
	Driver      string        `json:"driver"` // CloudHypervisor or QEMU
	Binary      Binary        `json:"binary"`
	Firmware    FirmwareFiles `json:"firmware"` // zero if none was found: only direct kernel boot works then
	Accelerator string        `json:"accelerator"`
	Reasons     []string      `json:"reasons"`            // how it came about, in order
	Warnings    []string      `json:"warnings,omitempty"` // what will not work as it is
}

// Choose decides which hypervisor this server uses; see Finder.Choose.
func Choose(ctx context.Context, want Wants) (Decision, error) { return Finder{}.Choose(ctx, want) }

// Choose decides which hypervisor this server uses. "auto" takes Cloud Hypervisor if a binary that is new enough,
// its firmware and a KVM that really runs guests are there, else QEMU with the best accelerator. A hypervisor named
// in the configuration is never replaced by the other: only its binary must be there, and what else it lacks becomes
// a warning, as direct kernel boot needs no firmware and a test may bring its own hypervisor.
func (f Finder) Choose(ctx context.Context, want Wants) (Decision, error) {
	f = f.withDefaults()
	if want.Arch == "" {
		want.Arch = f.Arch
	}
	f.KVM = once(f.KVM)
	switch want.Hypervisor {
	case Auto, "":
		d, why := f.tryCloudHypervisor(ctx, want)
		if len(why) == 0 {
			return d, nil
		}
		q, err := f.chooseQEMU(ctx, want)
		if err != nil {
			return Decision{}, errors.Join(fmt.Errorf("no hypervisor can be used: Cloud Hypervisor: %s", strings.Join(why, "; ")), err)
		}
		for i, reason := range why {
			why[i] = "Cloud Hypervisor is not used: " + reason
		}
		q.Reasons = append(why, q.Reasons...)
		return q, nil
	case CloudHypervisor:
		b, err := f.CloudHypervisor(ctx, want.CloudHypervisorBinary)
		if err != nil {
			return Decision{}, fmt.Errorf("find the configured hypervisor: %w", err)
		}
		d := Decision{Driver: CloudHypervisor, Binary: b, Accelerator: AccelKVM}
		d.Reasons = []string{fmt.Sprintf("Cloud Hypervisor %s (%s) is configured", b.Version, b.Path)}
		d.Firmware, d.Warnings = f.cloudHypervisorNeeds(ctx, want)
		return d, nil
	case QEMU:
		d, err := f.chooseQEMU(ctx, want)
		if err == nil {
			d.Reasons = append([]string{"QEMU is configured"}, d.Reasons...)
		}
		return d, err
	default:
		return Decision{}, fmt.Errorf("hypervisor %q is unknown; it is one of auto, cloud-hypervisor, qemu",
			want.Hypervisor)
	}
}

// tryCloudHypervisor returns why Cloud Hypervisor cannot be chosen automatically, or the decision for it.
func (f Finder) tryCloudHypervisor(ctx context.Context, want Wants) (d Decision, whyNot []string) {
	if f.OS != "linux" {
		return d, []string{"it needs Linux, this is " + f.OS}
	}
	if want.Arch != f.Arch {
		return d, []string{fmt.Sprintf("it runs guests of the server's architecture (%s) only", f.Arch)}
	}
	if a := want.Accelerator; a != "" && a != Auto && a != AccelKVM {
		return d, []string{fmt.Sprintf("it needs KVM, but accelerator %q is configured", a)}
	}
	b, err := f.CloudHypervisor(ctx, want.CloudHypervisorBinary)
	if err != nil {
		return d, []string{err.Error()}
	}
	fw, missing := f.cloudHypervisorNeeds(ctx, want)
	if len(missing) > 0 {
		return d, missing
	}
	return Decision{
		Driver: CloudHypervisor, Binary: b, Firmware: fw, Accelerator: AccelKVM,
		Reasons: []string{
			fmt.Sprintf("Cloud Hypervisor %s (%s) is there with firmware %s", b.Version, b.Path, fw.Code),
			"KVM works: " + f.KVM(ctx).Reason,
		},
	}, nil
}

// cloudHypervisorNeeds finds what Cloud Hypervisor needs besides its binary and lists what is missing.
func (f Finder) cloudHypervisorNeeds(ctx context.Context, want Wants) (fw FirmwareFiles, missing []string) {
	fw, err := f.Firmware(CloudHypervisor, want.Arch, want.CloudHypervisorFirmware)
	if err != nil {
		missing = append(missing, err.Error())
	}
	if kvm := f.KVM(ctx); !kvm.Usable {
		missing = append(missing, "KVM is not usable: "+kvm.Reason)
	}
	return fw, missing
}

func (f Finder) chooseQEMU(ctx context.Context, want Wants) (Decision, error) {
	b, err := f.QEMU(ctx, want.Arch, want.QEMUBinary)
	if err != nil {
		return Decision{}, fmt.Errorf("find QEMU: %w", err)
	}
	d := Decision{Driver: QEMU, Binary: b}
	accel, why, err := f.acceleratorFor(ctx, want)
	if err != nil {
		return Decision{}, fmt.Errorf("choose an accelerator for QEMU: %w", err)
	}
	d.Accelerator = accel
	d.Reasons = []string{fmt.Sprintf("QEMU %s (%s) is used with accelerator %s: %s", b.Version, b.Path, accel, why)}
	if d.Firmware, err = f.Firmware(QEMU, want.Arch, want.QEMUFirmware); err != nil {
		d.Warnings = append(d.Warnings, err.Error())
	}
	return d, nil
}

func (f Finder) acceleratorFor(ctx context.Context, want Wants) (name, reason string, err error) {
	if want.Arch == f.Arch {
		return f.Accelerator(ctx, want.Accelerator)
	}
	switch want.Accelerator {
	case Auto, "", AccelTCG:
		return AccelTCG, fmt.Sprintf("guests are %s, the server is %s", want.Arch, f.Arch), nil
	default:
		return "", "", fmt.Errorf("accelerator %q runs guests of the server's architecture (%s) only, not %s",
			want.Accelerator, f.Arch, want.Arch)
	}
}

// once makes a probe answer a second time without trying again.
func once(probe func(context.Context) KVM) func(context.Context) KVM {
	var answer *KVM
	return func(ctx context.Context) KVM {
		if answer == nil {
			k := probe(ctx)
			answer = &k
		}
		return *answer
	}
}
