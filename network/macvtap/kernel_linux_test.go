// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package macvtap

import (
	"bytes"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/networktest"
)

const (
	scheme = "apinet"
	guest  = "02:00:00:00:00:01"
)

var primary = network.Ref{MachineID: networktest.MachineA, Name: "primary"}

// hold makes a tap that goes with its descriptor, as a data plane does for itself.
func hold(t *testing.T, name string) *os.File {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), name) // now that the descriptor can be waited for
	t.Cleanup(func() { _ = f.Close() })
	networktest.IP(t, "link set "+name+" up")
	return f
}

// arrives waits for a frame behind a header of some bytes.
func arrives(t *testing.T, at *os.File, header int, frame []byte) {
	t.Helper()
	if err := at.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for buffer := make([]byte, 4096); ; {
		n, err := at.Read(buffer)
		if err != nil {
			t.Fatalf("the frame does not arrive: %v", err)
		}
		if n >= header && bytes.Equal(buffer[header:n], frame) {
			return
		}
	}
}

func connect(t *testing.T, lower, mac string) string {
	t.Helper()
	name, err := Kernel{}.Connect(t.Context(), lower, scheme, primary, mac)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func index(t *testing.T, name string) int {
	t.Helper()
	device, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return device.Index
}

func TestAVMMGetsAnEndOfItsOwnAtATapThatSomebodyHolds(t *testing.T) {
	if !networktest.InNamespace(t) {
		return
	}
	plane := hold(t, "dtap0")
	name := connect(t, "dtap0", guest)
	first := index(t, name)
	if again := connect(t, "dtap0", guest); again != name || index(t, again) != first {
		t.Errorf("connected again: %s", again)
	}
	if found := (Kernel{}).Find(t.Context(), "dtap0", scheme, primary); found != name {
		t.Errorf("found %s, want %s", found, name)
	}
	if addresses := networktest.IP(t, "address show dev "+name); bytes.Contains([]byte(addresses), []byte("inet")) {
		t.Errorf("the host has an address there:\n%s", addresses)
	}
	for _, queues := range []int{0, 2} {
		files, ok, err := Open(name, queues)
		if err != nil || !ok || len(files) != max(queues, 1) {
			t.Fatalf("Open = %d files, %v, %v", len(files), ok, err)
		}
		const header = 10 // of virtio
		out := append([]byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5}, bytes.Repeat([]byte{7}, 60)...)
		in := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 0xb5}, bytes.Repeat([]byte{8}, 60)...)
		if _, err := files[0].Write(append(make([]byte, header), out...)); err != nil {
			t.Fatal(err)
		}
		arrives(t, plane, 0, out)
		if queues < 2 { // which queue it comes to is the kernel's choice
			if _, err := plane.Write(in); err != nil {
				t.Fatal(err)
			}
			arrives(t, files[0], header, in)
		}
		for _, f := range files {
			_ = f.Close()
		}
	}
	for range 2 {
		if err := (Kernel{}).Disconnect(t.Context(), scheme, primary); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := net.InterfaceByName(name); err == nil {
		t.Error("it is still there")
	}
	if found := (Kernel{}).Find(t.Context(), "dtap0", scheme, primary); found != "dtap0" {
		t.Errorf("found %s", found)
	}
	index(t, "dtap0")
}

func TestATapThatWaitsForAVMMIsGivenAsItIs(t *testing.T) {
	if !networktest.InNamespace(t) {
		return
	}
	networktest.IP(t, "tuntap add mtap0 mode tap")
	if name := connect(t, "mtap0", guest); name != "mtap0" {
		t.Errorf("it is %s", name)
	}
	if _, ok, err := Open("mtap0", 0); ok || err != nil {
		t.Errorf("Open = %v, %v", ok, err)
	}
	if err := (Kernel{}).Disconnect(t.Context(), scheme, primary); err != nil {
		t.Error(err)
	}
	index(t, "mtap0")
}

func TestAChangedConnectionIsMadeAnew(t *testing.T) {
	if !networktest.InNamespace(t) {
		return
	}
	hold(t, "dtap0")
	hold(t, "dtap1")
	first := index(t, connect(t, "dtap0", guest))
	second := index(t, connect(t, "dtap0", "02:00:00:00:00:02"))
	third := index(t, connect(t, "dtap1", "02:00:00:00:00:02"))
	if first == second || second == third {
		t.Errorf("devices %d, %d, %d", first, second, third)
	}
}

func TestWhatIsMissingOrSomebodyElsesIsTold(t *testing.T) {
	if !networktest.InNamespace(t) {
		return
	}
	if _, err := (Kernel{}).Connect(t.Context(), "dtap0", scheme, primary, guest); !errors.Is(err, ErrNoDevice) {
		t.Errorf("without a device: %v", err)
	}
	hold(t, "dtap0")
	untouched := networktest.OccupyTap(t, primary)
	if _, err := (Kernel{}).Connect(t.Context(), "dtap0", scheme, primary, guest); !errors.Is(err, ErrNotOwner) {
		t.Errorf("a foreign device: %v", err)
	}
	if err := errors.Join((Kernel{}).Disconnect(t.Context(), scheme, primary), untouched()); err != nil {
		t.Error(err)
	}
}
