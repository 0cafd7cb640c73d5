// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmm

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func TestDeviceIDsAreShortAndUnique(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?`)
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		kind := rapid.SampledFrom([]string{"disk", "nic"}).Draw(t, "kind")
		idA, idB := DeviceID(kind, a), DeviceID(kind, b)
		if len(idA) > maxDeviceID || strings.Contains(idA, ".") || !strings.HasPrefix(idA, kind+"-") {
			t.Fatalf("%q becomes %q", a, idA)
		}
		if (a == b) != (idA == idB) {
			t.Fatalf("%q and %q become %q and %q", a, b, idA, idB)
		}
	})
	for name, want := range map[string]string{"root": "disk-root", "a-b": "disk-a-b"} {
		if got := DeviceID("disk", name); got != want {
			t.Errorf("%s becomes %s, want %s", name, got, want)
		}
	}
	if a, b := DeviceID("disk", "a.b"), DeviceID("disk", "a_b"); a == b {
		t.Error("a dot is mistaken for what it is replaced by")
	}
}

func TestIgnitionGoesByTheFirstTransportThatCarriesIt(t *testing.T) {
	ch := Capabilities{Ignition: []IgnitionTransport{IgnitionSMBIOS, IgnitionDisk}, SMBIOSMaxBytes: 30 << 10}
	qemu := Capabilities{Ignition: []IgnitionTransport{IgnitionFWCfg}}
	for _, c := range []struct {
		name string
		caps Capabilities
		want string
		size int
		by   IgnitionTransport
		kind machine.Kind
		text string
	}{
		{name: "a small one by SMBIOS", caps: ch, want: "auto", size: 30 << 10, by: IgnitionSMBIOS},
		{name: "a larger one by disk", caps: ch, want: "auto", size: 30<<10 + 1, by: IgnitionDisk},
		{name: "one that nothing carries is refused with the limit", caps: ch, want: "auto", size: MaxIgnitionDisk + 1, kind: machine.Invalid, text: "16777216"},
		{name: "by the one that is asked for", caps: ch, want: "disk", size: 1, by: IgnitionDisk},
		{name: "too much for the one that is asked for", caps: ch, want: "smbios", size: 31 << 10, kind: machine.Invalid, text: "30720"},
		{name: "one that the hypervisor does not have", caps: qemu, want: "smbios", size: 1, kind: machine.Unimplemented, text: "smbios"},
		{name: "by firmware configuration", caps: qemu, want: "auto", size: MaxIgnitionFWCfg, by: IgnitionFWCfg},
		{name: "not at all", want: "auto", size: 1, kind: machine.Unimplemented},
	} {
		by, err := ChooseIgnition(c.caps, c.want, c.size)
		if by != c.by || (err == nil) != (c.kind == machine.Unknown) || (err != nil && (machine.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text))) {
			t.Errorf("%s: %q, %v", c.name, by, err)
		}
	}
}
