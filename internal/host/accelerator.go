// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
)

// Accelerator chooses what QEMU runs guests of the server's architecture with; see Finder.Accelerator.
func Accelerator(ctx context.Context, want string) (name, reason string, err error) {
	return Finder{}.Accelerator(ctx, want)
}

// Accelerator chooses what QEMU runs guests of the server's own architecture with. Want is "auto" (or empty): KVM if
// it is proven to work, else HVF, else TCG; or one of them by name, which is an error if it cannot be had. The reason
// is for a log line.
func (f Finder) Accelerator(ctx context.Context, want string) (name, reason string, err error) {
	f = f.withDefaults()
	switch want {
	case AccelTCG:
		return AccelTCG, "asked for by configuration", nil
	case AccelKVM:
		kvm := f.KVM(ctx)
		if !kvm.Usable {
			return "", "", fmt.Errorf("accelerator %q is configured, but KVM is not usable: %s", want, kvm.Reason)
		}
		return AccelKVM, kvm.Reason, nil
	case AccelHVF:
		ok, reason := f.HVF()
		if !ok {
			return "", "", fmt.Errorf("accelerator %q is configured, but HVF is not usable: %s", want, reason)
		}
		return AccelHVF, reason, nil
	case Auto, "":
		if f.OS == "darwin" {
			ok, reason := f.HVF()
			if ok {
				return AccelHVF, reason, nil
			}
			return AccelTCG, "HVF is not usable: " + reason, nil
		}
		kvm := f.KVM(ctx)
		if kvm.Usable {
			return AccelKVM, kvm.Reason, nil
		}
		return AccelTCG, "KVM is not usable: " + kvm.Reason, nil
	default:
		return "", "", fmt.Errorf("accelerator %q is unknown; it is one of auto, kvm, hvf, tcg", want)
	}
}
