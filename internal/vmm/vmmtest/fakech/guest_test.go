// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func guestSentences() []misbehaviour {
	obey := func(s *Script) { s.PowerButtonMS = 20 }
	return []misbehaviour{
		{"the guest prints what it was given", nil, func(e *env) {
			e.file("a", 1<<20)
			e.running(object{
				"disks":    []object{e.disk("a", "a", object{"serial": "vol-1"})},
				"net":      []object{{"tap": "t0", "mac": "52:54:00:00:00:01"}},
				"platform": object{"oem_strings": []string{"one", "two"}},
			})
			l := e.attach()
			want := "cmdline console=ttyS0\r\n"
			if runtime.GOARCH == "amd64" {
				want += "oem: one\r\noem: two\r\n"
			}
			l.shows(want + "disk vol-1 1048576\r\nnet 52:54:00:00:00:01\r\n" + BootMarker)
			l.types("root")
			l.shows("root")
			e.must(e.control().Serial("more\r\n"))
			l.shows("more\r\n")
			if f := e.facts(); f.SerialInput != "root" || f.State != "Running" || !slices.Contains(f.Calls, "PUT vm.boot") {
				e.t.Errorf("facts %+v", f)
			}
		}},
		{"a late client gets the newest mebibyte", func(s *Script) { s.BootText = ptr("") }, func(e *env) {
			e.running()
			e.must(e.control().Serial("lost" + strings.Repeat("x", replayLimit-4) + "last"))
			l := e.attach()
			_ = l.c.SetReadDeadline(time.Now().Add(patience))
			first := make([]byte, 4)
			if _, err := io.ReadFull(l.c, first); err != nil || string(first) != "xxxx" {
				e.t.Errorf("first bytes %q (%v)", first, err)
			}
			// What did not fit into the socket follows the guest's next output.
			go func() {
				for range 200 {
					if e.control().Serial(".") != nil {
						return
					}
				}
			}()
			l.shows("last.")
		}},
		{"a guest obeys the power button after its time", obey, func(e *env) {
			e.running()
			e.put("vm.power-button").done()
			e.until("the machine is off", func() bool { return e.info().State == "Created" })
			e.sequence("vmm starting", "vm booting", "vm booted", "vm shutdown")
		}},
		{"a paused guest reacts when it is resumed", obey, func(e *env) {
			e.running()
			e.put("vm.pause").done()
			e.put("vm.power-button").done()
			e.put("vm.resume").done()
			e.until("the machine is off", func() bool { return e.info().State == "Created" })
		}},
		{"a guest that ignores the power button can be told to listen", func(s *Script) { s.PowerButton = "ignore" }, func(e *env) {
			e.running()
			e.put("vm.power-button").done()
			if f := e.facts(); f.PowerButton != 1 || f.State != "Running" {
				e.t.Errorf("facts %+v", f)
			}
			e.must(e.control().IgnorePowerButton(false))
			e.put("vm.power-button").done()
			e.until("the machine is off", func() bool { return e.info().State == "Created" })
		}},
		{"a device leaves when the guest ejects it", func(s *Script) { s.Eject = "hold" }, func(e *env) {
			e.file("a", 1<<20)
			e.running(object{"disks": []object{e.disk("a", "a")}})
			if err := e.control().Eject("a"); err == nil {
				e.t.Error("ejected a device that was not removed")
			}
			e.put("vm.remove-device", object{"id": "a"}).done()
			if f := e.facts(); !slices.Equal(f.Pending, []string{"a"}) {
				e.t.Errorf("pending %v", f.Pending)
			}
			e.must(e.control().Eject("a"))
			if _, held := e.info().Tree["a"]; held {
				e.t.Error("device is still there")
			}
			e.put("vm.add-disk", e.disk("a", "a")).is(200, `{"id":"a","bdf":"0000:00:01.0"}`)
			e.must(e.control().HoldEject(false))
			e.put("vm.remove-device", object{"id": "a"}).done()
			e.sequence("vmm starting", "vm booting", "vm booted", "vm device-removed id=a bdf=0000:00:01.0",
				"vm device-removed id=a bdf=0000:00:01.0")
		}},
		{"a panic is an event only with pvpanic", nil, func(e *env) {
			e.running(object{"pvpanic": true})
			e.must(e.control().Panic())
			e.sequence("vmm starting", "vm booting", "vm booted", "guest panic event=Panic")
		}},
		{"removed vCPUs that stay make the next resize 429", func(s *Script) { s.HoldVcpus = true }, func(e *env) {
			e.running(object{"cpus": object{"boot_vcpus": 2, "max_vcpus": 4}})
			e.put("vm.resize", object{"desired_vcpus": 1}).done()
			e.put("vm.resize", object{"desired_vcpus": 3}).is(429, `["Too Many Requests"]`)
			e.must(e.control().ReleaseVcpus())
			e.put("vm.resize", object{"desired_vcpus": 3}).done()
		}},
		{"tap descriptors live until the NIC or the machine goes", nil, func(e *env) {
			e.start("--no-shutdown")
			e.put("vm.create", e.config()).done()
			r, w, err := os.Pipe()
			e.must(err)
			defer r.Close()
			for _, id := range []string{"one", "two"} {
				e.sendNet(object{"id": id}, w).done()
			}
			w.Close()
			e.put("vm.boot").done()
			e.put("vm.reboot").done()
			e.put("vm.shutdown").done()
			e.put("vm.boot").done()
			if f := e.facts(); f.OpenFDs != 2 {
				e.t.Errorf("%d descriptors open, want 2", f.OpenFDs)
			}
			e.put("vm.remove-device", object{"id": "one"}).done()
			e.put("vm.delete").done()
			_ = r.SetReadDeadline(time.Now().Add(patience))
			if _, err := r.Read(make([]byte, 1)); err != io.EOF {
				e.t.Errorf("the pipe is still open: %v", err)
			}
		}},
		{"a listening socket and an event pipe can be inherited", nil, func(e *env) {
			ln, err := listenUnix(e.api)
			e.must(err)
			f, err := ln.File()
			e.must(err)
			defer f.Close()
			ln.Close()
			r, w, err := os.Pipe()
			e.must(err)
			e.script.ControlSocket = e.api + ".ctl"
			e.cmd = e.command("--api-socket", "fd=3", "--event-monitor", "fd=4")
			e.cmd.ExtraFiles = []*os.File{f, w}
			e.must(e.cmd.Start())
			w.Close()
			e.put("vmm.shutdown").is(200, "")
			b, err := io.ReadAll(r)
			e.must(err)
			e.must(e.cmd.Wait())
			if !strings.HasPrefix(string(b), "{\n  \"timestamp\": {\n    \"secs\": 0,\n    \"nanos\": ") ||
				!strings.HasSuffix(string(b), "  \"source\": \"vmm\",\n  \"event\": \"shutdown\",\n  \"properties\": null\n}\n\n") {
				e.t.Errorf("events %s", b)
			}
			e.exists(true, "api")
			e.exists(false, "api.lock")
		}},
	}
}

func (e *env) facts() Facts {
	e.t.Helper()
	f, err := e.control().Facts()
	e.must(err)
	return f
}

// TestNothingIsLeftBehind runs a machine's life with every socket there is and looks at what remains.
func TestNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	e := newEnv(t, fakes()[1])
	if err := tinyELF(e.path("kernel")); err != nil {
		t.Fatal(err)
	}
	e.file("a", 1<<20)
	e.start()
	e.put("vm.create", e.config(object{
		"disks": []object{e.disk("a", "a")}, "vsock": object{"cid": 3, "socket": e.path("vsock")},
	})).done()
	e.put("vm.boot").done()
	l := e.attach()
	l.booted()
	for range 20 {
		e.put("vm.reboot").done()
	}
	before := openFDs(t, e.cmd.Process.Pid)
	for range 20 {
		e.put("vm.reboot").done()
	}
	if after := openFDs(t, e.cmd.Process.Pid); after > before+2 {
		t.Errorf("%d descriptors after more reboots, %d before", after, before)
	}
	e.put("vmm.shutdown").is(200, "")
	e.ends(0)
	entries, err := os.ReadDir(e.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if want := []string{"a", "api.lock", "events", "kernel", "log", "script.json"}; !slices.Equal(names, want) {
		t.Errorf("left %v, want %v", names, want)
	}
}

func openFDs(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Skipf("NO /proc: descriptors are not counted: %v", err)
	}
	return len(entries)
}

// TestItIsSmall holds the promise that a thousand fakes fit into one test: 12 MiB resident each.
func TestItIsSmall(t *testing.T) {
	t.Parallel()
	if os.Getenv("FAKECH_BINARY") != "" {
		t.Skip("NOT MEASURED: the binary in FAKECH_BINARY is not built as the tests build it")
	}
	e := newEnv(t, fakes()[1])
	if err := tinyELF(e.path("kernel")); err != nil {
		t.Fatal(err)
	}
	e.running(object{"vsock": object{"cid": 3, "socket": e.path("vsock")}})
	for range 50 {
		e.get("vm.info").is(200, "")
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.cmd.Process.Pid))
	if err != nil {
		t.Skipf("NO /proc: the size is not measured: %v", err)
	}
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil || kib > 12<<10 {
		t.Errorf("resident size %d KiB (%v), want at most 12 MiB", kib, err)
	}
	t.Logf("resident size %d KiB", kib)
}

// BenchmarkStart is the time from exec to the first answer.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		if err := exec.Command(fakeBinary, "--version").Run(); err != nil {
			b.Fatal(err)
		}
	}
}
