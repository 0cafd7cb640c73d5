// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network/networktest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
)

// The world outside is another network namespace behind a veth pair; to the daemon's it is what its default route leads
// to. It knows no way back to the guests' addresses.
const (
	hostOutside = "198.51.100.1"
	outside     = "198.51.100.2"
	outsideEnv  = "CHP_E2E_OUTSIDE"
)

const networkConfig = `network:
  plugin: providernet
  providernet:
    networks:
      lab: {managed: {subnet: 10.77.0.0/24, dns: [9.9.9.9]}}
      alone: {mtu: 1400, isolated: true, managed: {subnet: 10.78.0.0/24, nat: false}}
`

// inNetwork runs the test in a network namespace with the world outside; guest and programs are made before, since they
// may have to be downloaded.
func inNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv("CHP_E2E_NETWORK") == "" {
		for _, tool := range []string{"nft", "ip"} {
			if _, err := exec.LookPath(tool); err != nil {
				t.Skipf("SKIPPED: guests on real networks were NOT TESTED: %v", err)
			}
		}
		files, err := testGuest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		daemon, _, _ := programs(t)
		for name, value := range map[string]string{
			"CHP_E2E_NETWORK": "1", "CHP_GUEST_DIR": filepath.Dir(files.Initramfs), "CHP_E2E_BIN_DIR": filepath.Dir(daemon),
		} {
			t.Setenv(name, value)
		}
		return networktest.InNamespace(t)
	}
	if !networktest.InNamespace(t) {
		return false
	}
	networktest.IP(t, "link set lo up")
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestTheWorldOutside$")
	cmd.Env = append(os.Environ(), outsideEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	networktest.IP(t, "link add up0 type veth peer name up1")
	networktest.IP(t, fmt.Sprintf("link set up1 netns %d", cmd.Process.Pid))
	networktest.IP(t, "addr add "+hostOutside+"/24 dev up0")
	networktest.IP(t, "link set up0 up")
	networktest.IP(t, "route add default via "+outside)
	return true
}

// TestTheWorldOutside is the process that is the world: it tells everybody who asks under which address it sees them.
func TestTheWorldOutside(t *testing.T) {
	if os.Getenv(outsideEnv) == "" {
		return // it is a part of other tests
	}
	for {
		if _, err := net.InterfaceByName("up1"); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	networktest.IP(t, "addr add "+outside+"/24 dev up1")
	networktest.IP(t, "link set up1 up")
	server, err := net.Listen("tcp", outside+":8080")
	if err != nil {
		t.Fatal(err)
	}
	for {
		conn, err := server.Accept()
		if err != nil {
			t.Fatal(err)
		}
		from, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		_, _ = fmt.Fprintf(conn, "you are %s\n", from)
		_ = conn.Close()
	}
}

// asks types a command on the guest's console and returns what it prints, without its last line break.
func (d *daemon) asks(id, command string) string {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	conn := d.attach(id)
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	// The marks are made by the shell, so that the typed line that comes back is not taken for them.
	mark := fmt.Sprintf("%d", time.Now().UnixNano())
	line := fmt.Sprintf("echo be''gin-%s; %s; echo; echo en''d-%s\n", mark, command, mark)
	if _, err := conn.Write([]byte(line)); err != nil {
		d.t.Fatal(err)
	}
	var out []string
	on := false
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		text := strings.TrimRight(lines.Text(), "\r")
		switch {
		case strings.HasSuffix(text, "begin-"+mark):
			on = true
		case strings.HasSuffix(text, "end-"+mark):
			return strings.TrimSpace(strings.Join(out, "\n"))
		case on && !strings.HasPrefix(text, "guest: "):
			out = append(out, text)
		}
	}
	d.t.Fatalf("the guest does not answer %q", command)
	return ""
}

// reaches expects that a guest can or cannot ping an address. That it can may take a while: a guest notices late that an
// address has gone to another one.
func (d *daemon) reaches(id, address string, want bool) {
	d.t.Helper()
	pings := func() bool {
		return d.asks(id, "ping -c 2 -W 2 "+address+" >/dev/null 2>&1 && echo y''es || echo n''o") == "yes"
	}
	if want {
		d.until("ping "+address, pings)
	} else if pings() {
		d.t.Errorf("%s is reached", address)
	}
}

var lease = regexp.MustCompile(`guest: dhcp eth0 ip=(\S+)`)

func (d *daemon) leased(id string) (address string) {
	d.t.Helper()
	d.until("a lease", func() bool {
		m := lease.FindSubmatch(d.consoleLog(id))
		if m != nil {
			address = string(m[1])
		}
		return m != nil
	})
	return address
}

func onNetwork(m *iri.Machine, network string, ips ...string) *iri.Machine {
	m.Spec.NetworkInterfaces = []*iri.NetworkInterface{{Name: "primary", NetworkId: network, Ips: ips}}
	m.Spec.GuestConfig = &iri.GuestConfig{Hostname: "of-" + network}
	return m
}

func TestGuestsOnNetworksThatTheDaemonMakes(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	binary, _, _ := programs(t)
	files, err := testGuest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	host, ref := pushGuest(t, files, "chp.dhcp")
	d := newDaemon(t, binary, host, "--hypervisor", "qemu")
	d.configure(networkConfig)
	d.start()

	one := d.create(onNetwork(newMachine(ref, "one"), "lab", "10.77.0.50"))
	two := newMachine(ref, "two")
	two.Spec.Class = "pair"
	second := d.create(onNetwork(two, "lab"))
	third := d.create(onNetwork(newMachine(ref, "three"), "alone", "10.78.0.9"))
	if got := d.leased(one); got != "10.77.0.50/24" {
		t.Errorf("the lease is %s, asked for was 10.77.0.50", got)
	}
	if got := d.leased(third); got != "10.78.0.9/24" {
		t.Errorf("the lease is %s, asked for was 10.78.0.9", got)
	}
	address, _, _ := strings.Cut(d.leased(second), "/")
	for _, id := range []string{one, second, third} {
		d.state(id, iri.MachineState_MACHINE_RUNNING)
		d.attached(id)
	}
	d.worksOnLab(one, second, address)
	d.isolated(third, address)

	d.sigkill() // DHCP and all else is answered again without anything being done to the guests
	d.start()
	if got := d.asks(one, "udhcpc -i eth0 -n -q -f -t 8 -T 2 -s /etc/udhcpc.sh 2>&1 | grep obtained"); !strings.Contains(got, "10.77.0.50 obtained") {
		t.Errorf("a lease after the daemon's restart: %q", got)
	}
	d.refuses(ref)
	d.unplugged(ref, one, second, third)
}

// worksOnLab is what guests can do on a network with NAT.
func (d *daemon) worksOnLab(one, second, address string) {
	d.t.Helper()
	d.reaches(one, address, true)
	d.reaches(second, "10.77.0.50", true)
	d.reaches(one, "10.77.0.1", true)
	d.reaches(one, outside, true)
	if got := d.asks(second, "nc -w 10 "+outside+" 8080 </dev/null"); got != "you are "+hostOutside {
		d.t.Errorf("the world outside says %q", got)
	}
	if got := d.asks(one, "cat /etc/resolv.conf"); got != "nameserver 9.9.9.9" {
		d.t.Errorf("name servers: %q", got)
	}
	if got := d.asks(second, "ls -d /sys/class/net/eth0/queues/rx-* | wc -l"); got != "2" {
		d.t.Errorf("a guest with two CPUs has %s queues", got)
	}
	// The host is closed to guests, whatever it serves and on whichever address.
	server, err := net.Listen("tcp", "0.0.0.0:8081")
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	for _, of := range []string{"10.77.0.1", hostOutside} {
		if got := d.asks(one, "nc -w 3 "+of+" 8081 </dev/null >/dev/null 2>&1 && echo op''en || echo cl''osed"); got != "closed" {
			d.t.Errorf("the host's port 8081 at %s is %s", of, got)
		}
	}
}

// isolated expects that the guest on the network without NAT reaches nobody, and was told of the network's own MTU.
func (d *daemon) isolated(third, address string) {
	d.t.Helper()
	for _, other := range []string{"10.77.0.50", address, "10.77.0.1", outside} {
		d.reaches(third, other, false)
	}
	if got := d.asks(third, "ip route | grep -c default; cat /sys/class/net/eth0/mtu"); got != "0\n1400" {
		d.t.Errorf("default routes and MTU: %q", got)
	}
}

// refuses expects clear answers to what can never work.
func (d *daemon) refuses(ref string) {
	d.t.Helper()
	for text, m := range map[string]*iri.Machine{
		"network_id":  onNetwork(newMachine(ref, "bad"), "ironcore-net://ns/name/id/uid"),
		"is a URL":    onNetwork(newMachine(ref, "bad"), "ironcore-net://ns/name/id/uid"),
		"10.99.0.1":   onNetwork(newMachine(ref, "bad"), "lab", "10.99.0.1"),
		"is no netwo": onNetwork(newMachine(ref, "bad"), "elsewhere"),
	} {
		if _, err := d.CreateMachine(d.t.Context(), &iri.CreateMachineRequest{Machine: m}); err == nil || !strings.Contains(err.Error(), text) {
			d.t.Errorf("created with %v: %v", m.Spec.NetworkInterfaces, err)
		}
	}
}

// unplugged expects that the taps are exactly those of the machines, and that who waited for an address gets it.
func (d *daemon) unplugged(ref, one, second, third string) {
	d.t.Helper()
	heir := d.create(onNetwork(newMachine(ref, "heir"), "lab", "10.77.0.50"))
	d.until("a condition that tells of the address", func() bool {
		for _, c := range d.get(heir).Status.MachineConditions {
			if c.Reason == "AddressInUse" && strings.Contains(c.Message, "10.77.0.50") {
				return true
			}
		}
		return false
	})
	d.gone(one)
	if got := d.leased(heir); got != "10.77.0.50/24" {
		d.t.Errorf("the heir's lease is %s", got)
	}
	d.reaches(second, "10.77.0.50", true)
	d.gone(heir)
	d.reaches(second, outside, true)
	d.reaches(second, "10.77.0.50", false)
	if links := networktest.IP(d.t, "link show"); strings.Contains(links, tap.Name(one, "primary")) || !strings.Contains(links, tap.Name(second, "primary")) {
		d.t.Error(links)
	}
	networktest.IP(d.t, "link del chp-lab") // by a mistake of somebody
	d.until("the network is back", func() bool {
		out, err := exec.Command("ip", "link", "show", tap.Name(second, "primary")).CombinedOutput()
		return err == nil && strings.Contains(string(out), "master chp-lab")
	})
	d.reaches(second, outside, true)
	d.gone(second)
	d.gone(third)
	if links := networktest.IP(d.t, "link show"); strings.Contains(links, tap.Name(second, "primary")) || strings.Contains(links, tap.Name(third, "primary")) {
		d.t.Errorf("taps are left: %s", links)
	}
	d.sigterm()
}

// configure adds to the daemon's configuration, and a class with two CPUs.
func (d *daemon) configure(more string) {
	d.t.Helper()
	raw, err := os.ReadFile(d.path("config.yaml"))
	if err != nil {
		d.t.Fatal(err)
	}
	const small = "{metadata: {name: small}"
	text := strings.Replace(string(raw), small, "{metadata: {name: pair}, capabilities: {cpu: 2, memory: 192Mi}}, "+small, 1) + more
	if err := os.WriteFile(d.path("config.yaml"), []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// pushGuest serves a built guest under the command line.
func pushGuest(t *testing.T, files guest.Files, commandLine string) (host, ref string) {
	t.Helper()
	host, _ = serve(t)
	ref = host + "/test/guest:dhcp"
	_, err := guest.Push(t.Context(), files, ref, guest.PushOptions{
		PlainHTTP: true, PackOptions: guest.PackOptions{CommandLine: guest.DefaultCommandLine(files.Arch) + " " + commandLine},
	})
	if err != nil {
		t.Fatal(err)
	}
	return host, ref
}
