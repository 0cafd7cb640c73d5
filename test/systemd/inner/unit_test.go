// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package inner

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
)

func inside(t *testing.T) {
	t.Helper()
	if os.Getenv("CHP_SYSTEMD_INSIDE") == "" {
		t.Skip("this runs inside the machine that package test/systemd makes")
	}
	if comm, err := os.ReadFile("/proc/1/comm"); err != nil || string(comm) != "systemd\n" {
		t.Fatalf("process 1 is %q (%v), want systemd", comm, err)
	}
}

// act is something that happens to the daemon's unit.
type act struct {
	name string
	do   func(t *testing.T)
	same bool // the daemon's process stays, too
	more bool // only where there is time for all
}

func acts() []act {
	all := []act{
		{name: "systemctl restart", do: func(t *testing.T) { starts(t, "restart") }},
		{name: "systemctl stop, then start", do: stopAndStart},
		{name: "the binary is replaced, then restart", do: upgrade},
		{name: "systemctl daemon-reload", do: func(t *testing.T) { systemctl(t, "daemon-reload") }, same: true},
		{name: "systemd executes itself anew", do: func(t *testing.T) { systemctl(t, "daemon-reexec") }, same: true, more: true},
		{name: "SIGKILL of the daemon", do: func(t *testing.T) { dies(t, "main") }},
		{name: "the watchdog finds it hanging", do: hangs, more: true},
		{name: "SIGKILL of all in the daemon's unit", do: func(t *testing.T) { dies(t, "all") }, more: true},
	}
	if os.Getenv("CHP_SYSTEMD") == "all" {
		return all
	}
	return slices.DeleteFunc(all, func(a act) bool { return a.more })
}

func TestNothingThatHappensToTheDaemonsUnitTouchesAGuest(t *testing.T) {
	inside(t)
	h := chosen(t)
	id := install(t, h)
	vmm := "chp-vmm-" + id + ".service"
	if slice := property(t, vmm, "Slice"); slice != "machine.slice" {
		t.Errorf("the VMM is in %s", slice)
	}
	before := mainProcess(t, vmm)
	if in := processes(t, vmm); before.pid == 0 || !slices.Contains(in, strconv.Itoa(before.pid)) {
		t.Fatalf("the VMM is %v, and its unit holds %v", before, in)
	}
	speaks(t, id, "REMEMBERED=here; "+h.typed, h.answer)
	for _, a := range acts() {
		t.Run(a.name, func(t *testing.T) {
			daemon := mainProcess(t, unit)
			a.do(t)
			if now := mainProcess(t, unit); (now == daemon) != a.same {
				t.Errorf("the daemon was %v and is %v", daemon, now)
			}
			if now := mainProcess(t, vmm); now != before {
				t.Fatalf("the VMM was %v and is %v", before, now)
			}
			eventually(t, "the machine is running", func() bool { return state(t, id) == "MACHINE_RUNNING" })
			speaks(t, id, h.typed, h.answer)
			if n := logins(id, h); n != 1 {
				t.Errorf("the guest came up %d times", n)
			}
			if held := processes(t, unit); len(held) != 1 {
				t.Errorf("the daemon's unit holds %v, want the daemon alone", held)
			}
		})
	}
	t.Run("and what was taken up can be ended", func(t *testing.T) { ends(t, id, vmm) })
}

// stopAndStart looks, in between, at what a stop leaves.
func stopAndStart(t *testing.T) {
	systemctl(t, "stop", unit)
	if left := processes(t, unit); len(left) != 0 {
		t.Errorf("the stopped unit holds %v", left)
	}
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if target, _ := os.Readlink(link); strings.HasPrefix(target, binary) {
			t.Errorf("%s is still the daemon", link)
		}
	}
	if result := property(t, unit, "Result"); result != "success" {
		t.Errorf("the stop's result is %s", result)
	}
	if sockets, _ := filepath.Glob(filepath.Join(runtimeDir, "vmm", "*", "*")); len(sockets) == 0 {
		t.Error("the sockets of the VMM are gone with the unit")
	}
	if _, err := os.Stat(iriSocket); err == nil {
		t.Error("the IRI socket is left")
	}
	starts(t, "start")
}

// starts is systemctl start or restart: the daemon is ready when it returns. Where the emulated machine is so slow that
// something did not answer the daemon in time, systemd tries again, as it does on a server.
func starts(t *testing.T, verb string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "/usr/bin/systemctl", verb, unit).CombinedOutput(); err != nil {
		t.Logf("ONCE AGAIN by systemd: systemctl %s: %v\n%s", verb, err, out)
		again(t, process{})
	}
	version(t)
}

// upgrade installs another version as install(1) does: a new file under the old name.
func upgrade(t *testing.T) {
	from, err := os.Open(newBinary)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = from.Close() }()
	to, err := os.OpenFile(binary+".new", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	old := version(t)
	if err := os.Rename(binary+".new", binary); err != nil {
		t.Fatal(err)
	}
	starts(t, "restart")
	if now := version(t); now == old || now != "0.2.0-new" {
		t.Errorf("version %s after %s", now, old)
	}
}

// dies kills the daemon and waits until systemd has started it again.
func dies(t *testing.T, whom string) {
	daemon := mainProcess(t, unit)
	systemctl(t, "kill", "--signal=KILL", "--kill-who="+whom, unit)
	again(t, daemon)
}

// hangs stops the daemon's process with a watchdog that waits for seconds only.
func hangs(t *testing.T) {
	dropIn := filepath.Join("/etc/systemd/system", unit+".d", "watchdog.conf")
	if err := os.MkdirAll(filepath.Dir(dropIn), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dropIn, []byte("[Service]\nWatchdogSec=15s\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "daemon-reload")
	starts(t, "restart")
	daemon := mainProcess(t, unit)
	systemctl(t, "kill", "--signal=STOP", "--kill-who=main", unit)
	again(t, daemon)
	if err := os.Remove(dropIn); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "daemon-reload")
}

// again waits for another daemon that is ready.
func again(t *testing.T, old process) {
	t.Helper()
	eventually(t, "systemd starts the daemon again", func() bool {
		now := mainProcess(t, unit)
		return now.pid != 0 && now != old && property(t, unit, "ActiveState") == "active"
	})
	version(t)
}

// ends deletes the machine and expects nothing of it to be left.
func ends(t *testing.T, id, vmm string) {
	if _, err := dial(t).DeleteMachine(t.Context(), &iri.DeleteMachineRequest{MachineId: id}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the machine is gone", func() bool { return strings.HasPrefix(state(t, id), "unknown (<nil>)") })
	eventually(t, "its unit is gone", func() bool { return property(t, vmm, "LoadState") == "not-found" })
	if failed := systemctl(t, "list-units", "--failed", "--no-legend", "--plain"); failed != "" {
		t.Errorf("units have failed:\n%s", failed)
	}
}
