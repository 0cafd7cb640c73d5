// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package tap_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network/networktest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
)

const owner = "test://machine/nic"

func ensure(t *testing.T, s tap.Spec) tap.Device {
	t.Helper()
	s.Name, s.Owner = tap.Name("machine", "nic"), owner
	d, err := tap.Kernel{}.Ensure(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestATapIsMadeAsWantedAndAnewOnlyWhenNobodyHoldsIt(t *testing.T) {
	if !networktest.InNamespace(t) {
		return
	}
	uid := 65534
	first := ensure(t, tap.Spec{Queues: 4, MTU: 9000, UID: &uid})
	if !first.MultiQueue || first.MTU != 9000 || !first.Up || first.InUse || first.Owner != owner {
		t.Errorf("%+v", first)
	}
	if said := networktest.IP(t, "-d link show "+first.Name); !strings.Contains(said, "vnet_hdr on multi_queue numqueues 0 numdisabled 0 persist on user nobody") {
		t.Error(said)
	}
	if again := ensure(t, tap.Spec{Queues: 4, MTU: 1400, UID: &uid}); again.Index != first.Index || again.MTU != 1400 {
		t.Errorf("another MTU: %+v, before %+v", again, first)
	}
	single := ensure(t, tap.Spec{})
	if single.MultiQueue || single.Index == first.Index {
		t.Errorf("with one queue: %+v, before %+v", single, first)
	}
	vmm := hold(t, single.Name)
	if got := ensure(t, tap.Spec{Queues: 4}); got.Index != single.Index || got.MultiQueue || !got.InUse {
		t.Errorf("while it is in use: %+v, before %+v", got, single)
	}
	_ = vmm.Close()
	if got := ensure(t, tap.Spec{Queues: 4}); !got.MultiQueue || got.InUse {
		t.Errorf("when it is not any more: %+v", got)
	}
	if said := networktest.IP(t, "-6 addr show dev "+first.Name); said != "" {
		t.Errorf("the host has addresses on it: %s", said)
	}
}

// hold opens the tap as a VMM does.
func hold(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	req, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(int(f.Fd()), unix.TUNSETIFF, req); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestOnlyOnesOwnTapsAreListedByNameAndRemoved(t *testing.T) {
	if !networktest.InNamespace(t) {
		return
	}
	own := ensure(t, tap.Spec{})
	networktest.IP(t, "tuntap add mode tap name "+tap.Name("another", "nic"))
	networktest.IP(t, "tuntap add mode tap name chp0")
	devices, err := tap.Kernel{}.List(t.Context())
	if err != nil || len(devices) != 2 {
		t.Fatalf("List = %+v, %v", devices, err)
	}
	if !slices.ContainsFunc(devices, func(d tap.Device) bool { return d == own }) {
		t.Errorf("%+v is not among %+v", own, devices)
	}
	if err := (tap.Kernel{}).Remove(t.Context(), own.Name, "test://another/nic"); !errors.Is(err, tap.ErrNotOwner) {
		t.Errorf("removed for another: %v", err)
	}
	for range 2 {
		if err := (tap.Kernel{}).Remove(t.Context(), own.Name, owner); err != nil {
			t.Error(err)
		}
	}
	// One without a mark was left by a kill, and its name proves whose it is.
	if err := (tap.Kernel{}).Remove(t.Context(), tap.Name("another", "nic"), "test://another/nic"); err != nil {
		t.Error(err)
	}
	if devices, err := (tap.Kernel{}).List(t.Context()); err != nil || len(devices) != 0 {
		t.Errorf("List = %+v, %v", devices, err)
	}
}

func TestASpecThatNoKernelTakesIsRefused(t *testing.T) {
	for name, s := range map[string]tap.Spec{
		"no name":             {Owner: owner},
		"a long name":         {Name: "chp0123456789abc", Owner: owner},
		"no owner":            {Name: "chp0"},
		"an owner too long":   {Name: "chp0", Owner: strings.Repeat("x", 256)},
		"an MTU too small":    {Name: "chp0", Owner: owner, MTU: 67},
		"an MTU out of range": {Name: "chp0", Owner: owner, MTU: 65522},
	} {
		if _, err := (tap.Kernel{}).Ensure(t.Context(), s); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
