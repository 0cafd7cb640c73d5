// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package providernet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/networktest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
)

const patience = 30 * time.Second

func request(machine, name, id string, ips ...string) network.Request {
	sum := binary.BigEndian.Uint32([]byte(fmt.Sprintf("%-8s", machine+name))[:4])
	return network.Request{
		MachineID: machine, Interface: network.Interface{Name: name, NetworkID: id, IPs: ips}, Queues: 1, Hostname: machine,
		MAC: fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", sum>>24, sum>>16&255, sum>>8&255, sum&255),
	}
}

// applied expects a state and a reason, "" for ready.
func applied(t *testing.T, p *Plugin, r network.Request, reason string) network.Result {
	t.Helper()
	got, err := p.Apply(t.Context(), r)
	if err != nil || got.Reason != reason || (got.State == network.StateReady) != (reason == "") {
		t.Fatalf("Apply %s = %+v, %v; want %q", r.Ref(), got, err, reason)
	}
	return got
}

// events follows the plugin until the test ends.
func events(t *testing.T, p *Plugin) <-chan network.Ref {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	refs := p.Events(ctx)
	t.Cleanup(func() {
		cancel()
		for range refs { // until all is over
		}
	})
	return refs
}

// awaits reads events, as a reconciler does, until the interface is in the state, "" for ready.
func awaits(t *testing.T, p *Plugin, refs <-chan network.Ref, ref network.Ref, reason string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case got := <-refs:
			if got != ref {
				continue
			}
		case <-deadline:
			got, err := p.Observe(t.Context(), ref)
			t.Fatalf("no event told that %s is %q; it is %+v, %v", ref, reason, got, err)
		}
		got, err := p.Observe(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		if got.Reason == reason && (got.State == network.StateReady) == (reason == "") {
			return
		}
	}
}

func TestABridgeThatComesLaterWakesThoseWhoWait(t *testing.T) {
	if !networktest.InNamespace(t) {
		return
	}
	p := newPlugin(t, Options{Dir: t.TempDir(), AllowBridges: []string{"br-*"}})
	refs := events(t, p)
	r := request("m1", "a", "br-late")
	applied(t, p, r, "BridgeMissing")
	networktest.IP(t, "link add br-other type bridge")
	networktest.IP(t, "link add br-late type bridge")
	select {
	case got := <-refs:
		if got != r.Ref() {
			t.Errorf("woken: %s", got)
		}
	case <-time.After(patience):
		t.Fatal("nobody is woken")
	}
	applied(t, p, r, "")
}

func TestABridgeThatVanishesIsToldAndItsPortsComeBackByThemselves(t *testing.T) {
	if !networktest.InNamespace(t) {
		return
	}
	networktest.IP(t, "link add br0 type bridge")
	networktest.IP(t, "link add br1 type bridge")
	dir := t.TempDir()
	o := Options{Dir: dir, Networks: map[string]Network{"zero": {Bridge: "br0", Isolated: true}, "one": {Bridge: "br1"}}}
	p := newPlugin(t, o)
	r, other := request("m1", "a", "zero"), request("m2", "a", "one")
	first, second := applied(t, p, r, ""), applied(t, p, other, "")
	p = newPlugin(t, o) // nobody calls Apply after a restart
	refs := events(t, p)
	awaits(t, p, refs, r.Ref(), "")

	networktest.IP(t, "link del br0")
	awaits(t, p, refs, r.Ref(), "BridgeMissing")
	if got, err := p.Observe(t.Context(), other.Ref()); err != nil || got.State != network.StateReady {
		t.Errorf("the other one is %+v, %v", got, err)
	}
	networktest.IP(t, "link add br0 type bridge")
	awaits(t, p, refs, r.Ref(), "")
	if said := networktest.IP(t, "-d link show "+first.Tap); !strings.Contains(said, "master br0") || !strings.Contains(said, "isolated on") {
		t.Error(said)
	}
	if said := networktest.IP(t, "-d link show "+second.Tap); !strings.Contains(said, "isolated off") || !strings.Contains(said, "root_block on") {
		t.Error(said)
	}

	networktest.IP(t, "link set "+second.Tap+" nomaster")
	networktest.IP(t, "link set "+second.Tap+" master br0")
	deadline := time.Now().Add(patience)
	for !strings.Contains(networktest.IP(t, "link show "+second.Tap), "master br1") {
		if time.Now().After(deadline) {
			t.Fatal("the tap is not put back")
		}
		time.Sleep(10 * time.Millisecond)
	}
	networktest.IP(t, "link del "+second.Tap)
	awaits(t, p, refs, other.Ref(), "DeviceMissing")
	applied(t, p, other, "")
	awaits(t, p, refs, other.Ref(), "")
}

func TestWhatAHostCannotGiveFailsOneInterfaceOnly(t *testing.T) {
	if !networktest.InNamespace(t) {
		return
	}
	networktest.IP(t, "link add br0 type bridge")
	networktest.IP(t, "link add tap0 type veth peer name tap1")
	host := &failingTaps{Host: tap.Kernel{}}
	o := Options{
		Dir: t.TempDir(), MaxPorts: 2, Taps: host,
		Networks: map[string]Network{"zero": {Bridge: "br0"}, "wrong": {Bridge: "tap0"}, "none": {Bridge: "br9"}},
	}
	p := newPlugin(t, o)
	refs := events(t, p)
	a, b, c := request("m1", "a", "zero"), request("m2", "b", "zero"), request("m3", "c", "zero")
	applied(t, p, a, "")
	applied(t, p, b, "")
	applied(t, p, c, "BridgeFull")
	applied(t, p, request("m4", "d", "wrong"), "NotABridge")
	applied(t, p, request("m4", "d", "none"), "BridgeMissing")
	applied(t, p, request("m4", "d", "elsewhere"), "NetworkUnknown")
	applied(t, p, request("m4", "d", "zero", "192.0.2"), "AddressInvalid")
	applied(t, p, a, "") // it has its place already
	if _, err := p.Delete(t.Context(), b.Ref()); err != nil {
		t.Fatal(err)
	}
	for got := range refs { // of a and b, too
		if got == c.Ref() {
			break
		}
	}
	host.fail = fmt.Errorf("%w: too many", tap.ErrLimit)
	applied(t, p, c, "DeviceLimit")
	host.fail = nil
	applied(t, p, c, "")
	// What cannot be kept is not done.
	if err := errors.Join(os.RemoveAll(o.Dir), os.WriteFile(o.Dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	d := request("m5", "e", "none")
	networktest.IP(t, "link add br9 type bridge")
	if got, err := p.Apply(t.Context(), d); err == nil {
		t.Errorf("Apply = %+v", got)
	}
	if links := networktest.IP(t, "link show"); strings.Contains(links, tap.Name("m5", "e")) {
		t.Error(links)
	}
}

// failingTaps refuses to make taps while fail is set.
type failingTaps struct {
	tap.Host
	fail error
}

func (f *failingTaps) Ensure(ctx context.Context, s tap.Spec) (tap.Device, error) {
	if f.fail != nil {
		return tap.Device{}, f.fail
	}
	return f.Host.Ensure(ctx, s)
}

// guest is one end of a tap, as a VMM holds it.
type guest struct {
	t   *testing.T
	f   *os.File
	mac net.HardwareAddr
}

const vnetHeader = 10

func plugIn(t *testing.T, r network.Result) *guest {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	req, err := unix.NewIfreq(r.Tap)
	if err != nil {
		t.Fatal(err)
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "tap")
	t.Cleanup(func() { _ = f.Close() })
	mac, err := net.ParseMAC(r.MAC)
	if err != nil {
		t.Fatal(err)
	}
	return &guest{t, f, mac}
}

// dhcp sends a message and returns the Ethernet destination and the packet of the answer; again and again, since the
// bridge's port takes a while to forward.
func (g *guest) dhcp(kind byte, options ...byte) (to net.HardwareAddr, packet []byte) {
	g.t.Helper()
	payload := make([]byte, 240)
	copy(payload, []byte{1, 1, 6, 0, 0xca, 0xfe, 0, kind})
	copy(payload[28:], g.mac)
	copy(payload[236:], []byte{0x63, 0x82, 0x53, 0x63, 53, 1, kind})
	payload = append(append(append(payload[:240], 53, 1, kind), options...), 255)
	frame := make([]byte, vnetHeader+14+20+8, vnetHeader+14+20+8+len(payload))
	copy(frame[vnetHeader:], []byte{255, 255, 255, 255, 255, 255})
	copy(frame[vnetHeader+6:], g.mac)
	ip := frame[vnetHeader+12:]
	copy(ip, []byte{8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 68, 0, 67})
	binary.BigEndian.PutUint16(ip[4:], uint16(28+len(payload)))
	binary.BigEndian.PutUint16(ip[26:], uint16(8+len(payload)))
	binary.BigEndian.PutUint16(ip[12:], headerSum(ip[2:22]))
	frame = append(frame, payload...)
	buf := make([]byte, 2048)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if _, err := g.f.Write(frame); err != nil {
			g.t.Fatal(err)
		}
		_ = g.f.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		for {
			n, err := g.f.Read(buf)
			if err != nil {
				break
			}
			const udp = vnetHeader + 14 + 20
			if n > udp+8+240 && buf[vnetHeader+12] == 8 && buf[vnetHeader+23] == 17 && binary.BigEndian.Uint16(buf[udp+2:]) == 68 {
				return net.HardwareAddr(buf[vnetHeader : vnetHeader+6]), buf[udp+8 : n]
			}
		}
	}
	g.t.Fatal("DHCP is not answered")
	return nil, nil
}

func headerSum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

func TestAManagedNetworkAnswersDHCPAlsoAfterARestartAndALostBridge(t *testing.T) {
	needNft(t)
	if !networktest.InNamespace(t) {
		return
	}
	o := Options{Dir: t.TempDir(), Networks: map[string]Network{"lab": lab()}}
	p := newPlugin(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	refs := p.Events(ctx)
	r := request("m1", "a", "lab", "10.77.0.9")
	g := plugIn(t, applied(t, p, r, ""))
	expect := func(when string) {
		t.Helper()
		to, packet := g.dhcp(1)
		if yours := net.IP(packet[16:20]).String(); yours != "10.77.0.9" || to.String() != g.mac.String() {
			t.Errorf("%s: offered %s to %s", when, yours, to)
		}
	}
	expect("at first")
	applied(t, p, request("m2", "b", "lab", "10.77.0.9"), "AddressInUse")
	chosen := applied(t, p, request("m3", "c", "lab"), "")
	if again := applied(t, newPlugin(t, o), request("m3", "c", "lab"), ""); again.Message != chosen.Message {
		t.Errorf("%q, before the restart %q", again.Message, chosen.Message)
	}
	cancel()
	for range refs { // until all is over
	}

	p = newPlugin(t, o)
	refs = events(t, p)
	expect("after a restart")
	networktest.IP(t, "link del lab0")
	expect("on a new bridge")
	if said := networktest.IP(t, "addr show lab0"); !strings.Contains(said, "10.77.0.1/24") || strings.Contains(said, "inet6") {
		t.Error(said)
	}
	waiting := request("m2", "b", "lab", "10.77.0.9")
	applied(t, p, waiting, "AddressInUse")
	if _, err := p.Delete(t.Context(), r.Ref()); err != nil {
		t.Fatal(err)
	}
	for got := range refs {
		if got == waiting.Ref() {
			break
		}
	}
	applied(t, p, waiting, "")
}

func TestAManagedNetworkStaysUntilItsLastGuestIsGone(t *testing.T) {
	needNft(t)
	if !networktest.InNamespace(t) {
		return
	}
	o := Options{Dir: t.TempDir(), Networks: map[string]Network{"lab": lab()}}
	r := request("m1", "a", "lab")
	g := plugIn(t, applied(t, newPlugin(t, o), r, ""))
	o.Networks = nil
	p := newPlugin(t, o)
	refs := events(t, p)
	awaits(t, p, refs, r.Ref(), "")
	g.dhcp(1)
	applied(t, p, request("m2", "b", "lab"), "NetworkUnknown")
	if _, err := p.Delete(t.Context(), r.Ref()); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ip", "link", "show", "lab0").CombinedOutput(); err == nil {
		t.Errorf("the bridge is still there: %s", out)
	}
	if out, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil || strings.Contains(string(out), "table") {
		t.Errorf("rules are still there: %s, %v", out, err)
	}
	if files, err := os.ReadDir(o.Dir); err != nil || len(files) > 0 {
		t.Errorf("files are still there: %v, %v", files, err)
	}
}

func TestAManagedNetworkThatNobodyUsedGoesWithItsConfiguration(t *testing.T) {
	needNft(t)
	if !networktest.InNamespace(t) {
		return
	}
	o := Options{Dir: t.TempDir(), Networks: map[string]Network{"lab": lab()}}
	present := func() bool { return exec.Command("ip", "link", "show", "lab0").Run() == nil }
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never came about: %s", what)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	refs := newPlugin(t, o).Events(ctx)
	until("the bridge is made", present)
	cancel()
	for range refs { // until all is over
	}
	o.Networks = nil
	networktest.IP(t, "link add other type veth peer name end")
	networktest.IP(t, "link set other master lab0")
	p := newPlugin(t, o)
	if p.look(t.Context()); !present() {
		t.Fatal("the bridge is gone, and somebody else's port with it")
	}
	events(t, p)
	networktest.IP(t, "link set other nomaster")
	until("the bridge is gone", func() bool { return !present() })
	until("its file is gone", func() bool { files, _ := os.ReadDir(o.Dir); return len(files) == 0 })
}

func TestRulesThatSomebodyRemovesAreSetAgain(t *testing.T) {
	needNft(t)
	if !networktest.InNamespace(t) {
		return
	}
	p := newPlugin(t, Options{Dir: t.TempDir(), Networks: map[string]Network{"lab": lab()}})
	r := request("m1", "a", "lab")
	applied(t, p, r, "")
	refs := events(t, p)
	awaits(t, p, refs, r.Ref(), "")
	if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if exec.Command("nft", "list", "table", "ip", "cloud-hypervisor-provider-lab").Run() == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the rules are gone for good")
		}
	}
}

func TestAForeignBridgeIsNotTakenForAManagedOne(t *testing.T) {
	needNft(t)
	if !networktest.InNamespace(t) {
		return
	}
	networktest.IP(t, "link add lab0 type bridge")
	before := networktest.IP(t, "-d addr show lab0")
	p := newPlugin(t, Options{Dir: t.TempDir(), Networks: map[string]Network{"lab": lab()}})
	refs := events(t, p)
	r := request("m1", "a", "lab")
	applied(t, p, r, "BridgeForeign")
	if after := networktest.IP(t, "-d addr show lab0"); after != before {
		t.Errorf("it was\n%sand is\n%s", before, after)
	}
	networktest.IP(t, "link del lab0")
	for got := range refs {
		if got == r.Ref() {
			break
		}
	}
	applied(t, p, r, "")
}

func TestWithoutNftAManagedNetworkSaysWhatIsMissing(t *testing.T) {
	if !networktest.InNamespace(t) {
		return
	}
	p := newPlugin(t, Options{Dir: t.TempDir(), Networks: map[string]Network{"lab": lab()}, Nft: "no-such-nft"})
	if got := applied(t, p, request("m1", "a", "lab"), "NftMissing"); !strings.Contains(got.Message, "nftables") {
		t.Errorf("%+v", got)
	}
}
