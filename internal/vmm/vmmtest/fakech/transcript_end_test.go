// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

func endTranscripts() []transcript {
	booted := func(e *env, args ...string) {
		e.file("a", 1<<20)
		e.start(args...)
		e.put("vm.create", e.config(object{
			"disks": []object{e.disk("a", "a")}, "vsock": object{"cid": 3, "socket": e.path("vsock")},
		})).done()
		e.put("vm.boot").done()
	}
	clean := []string{"vmm starting", "vm booting", "vm booted", "vm shutdown", "vm deleted", "vmm shutdown"}
	list := []transcript{
		{"a guest that powers off ends the process with 0", true, func(e *env) {
			booted(e)
			l := e.attach()
			l.booted()
			l.types("p")
			l.closes()
			e.ends(0)
			e.exists(false, "api", "serial", "vsock")
			if e.s.d >= dialect53 {
				e.exists(true, "api.lock")
			}
			e.sequence(clean...)
		}},
		{"with --no-shutdown a guest that powers off leaves a machine that boots again", true, func(e *env) {
			booted(e, "--no-shutdown")
			l := e.attach()
			l.booted()
			l.types("p")
			l.closes()
			e.until("the machine is off", func() bool { return e.info().State == "Created" })
			e.exists(false, "serial", "vsock")
			e.put("vm.boot").done()
			e.attach().booted()
			e.sequence("vmm starting", "vm booting", "vm booted", "vm shutdown", "vm booting", "vm booted")
		}},
		{"a guest that resets is rebuilt in the same process", true, func(e *env) {
			booted(e)
			seen := []string{"vmm starting", "vm booting", "vm booted"}
			for _, command := range []string{"r", "f"} {
				l := e.attach()
				l.booted()
				l.types(command)
				l.closes()
				// Before that event a client may still reach the old socket.
				seen = append(seen, "vm rebooting", "vm rebooted")
				e.sequence(seen...)
			}
			e.attach().booted()
			e.state("Running")
		}},
		{"a reset that cannot be done exits 1 and leaves the API socket", true, func(e *env) {
			booted(e, "--no-shutdown")
			l := e.attach()
			l.booted()
			e.must(os.Remove(e.path("a")))
			l.types("r")
			e.ends(1)
			e.exists(true, "api")
			e.exists(false, "serial", "vsock")
			if !strings.Contains(e.stderr.String(), "1: Error rebooting VM\n  2: Error from device manager\n  3: Cannot open disk path") {
				e.t.Errorf("stderr %s", e.stderr.String())
			}
			e.sequence("vmm starting", "vm booting", "vm booted", "vm rebooting")
		}},
		{"a reboot by the API that cannot be done leaves the process and loses the disks", true, func(e *env) {
			booted(e, "--no-shutdown")
			e.must(os.Remove(e.path("a")))
			e.put("vm.reboot").fails(kindInternal, "The VM could not reboot", manager, "Cannot open disk path",
				"I/O error (path="+e.path("a")+" op=open)", noFile)
			e.state("Created")
			if e.count("disks") != 0 {
				e.t.Error("disks are still configured")
			}
		}},
		{"a second instance on the socket is refused and the first stays usable", false, func(e *env) {
			e.start()
			out, err := e.command("--api-socket", e.api).CombinedOutput()
			if e.s.d >= dialect53 && !strings.Contains(string(out), `API socket "`+e.api+`" is already in use by another running instance`) {
				e.t.Errorf("second instance: %v, %s", err, out)
			}
			if code(err) != 1 {
				e.t.Errorf("exit %v, want 1", err)
			}
			e.get("vmm.ping").is(200, "")
		}},
		{"a stale API socket is replaced from v53 on", false, func(e *env) {
			e.start()
			_ = e.cmd.Process.Kill()
			<-e.exited
			e.exists(true, "api")
			if e.s.d >= dialect53 {
				e.start()
				e.get("vmm.ping").is(200, "")
				return
			}
			e.spawn("--api-socket", e.api)
			e.ends(1)
		}},
		{"a wrong command line is refused", false, func(e *env) {
			for _, c := range []struct {
				code int
				args []string
			}{
				{2, nil},
				{2, []string{"--bogus"}},
				{0, []string{"--help"}},
				{0, []string{"--version"}},
				{1, []string{"--api-socket", e.path("no/api")}},
				{2, []string{"--api-socket", e.api, "--cpus", "boot=1"}},
				{1, []string{"--api-socket", e.api, "--event-monitor", "foo=1"}},
				{2, []string{"--api-socket", e.api, "--seccomp", "maybe"}},
			} {
				if err := e.command(c.args...).Run(); code(err) != c.code {
					e.t.Errorf("%q: %v, want exit %d", c.args, err, c.code)
				}
			}
		}},
		{"the API socket and the event file are private", false, func(e *env) {
			e.start()
			for _, name := range []string{"api", "api.lock", "events", "log"} {
				if name == "api.lock" && e.s.d < dialect53 {
					continue
				}
				st, err := os.Stat(e.path(name))
				if err != nil || st.Mode().Perm()&0o077 != 0 {
					e.t.Errorf("%s: mode %v (%v)", name, st.Mode(), err)
				}
			}
		}},
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		list = append(list, transcript{"signal " + sig.String() + " is a hard stop with exit 0", true, func(e *env) {
			booted(e, "--no-shutdown")
			e.must(e.cmd.Process.Signal(sig))
			e.ends(0)
			e.exists(false, "api", "serial", "vsock")
			e.sequence(clean...)
		}})
	}
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGKILL} {
		list = append(list, transcript{"signal " + sig.String() + " kills and leaves the sockets", true, func(e *env) {
			booted(e)
			// Events trail the answers a little; those not written yet die with the process.
			e.sequence("vmm starting", "vm booting", "vm booted")
			e.must(e.cmd.Process.Signal(sig))
			e.ends(-int(sig))
			e.exists(true, "api", "serial", "vsock")
			e.sequence("vmm starting", "vm booting", "vm booted")
		}})
	}
	return list
}

func code(err error) int {
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}
