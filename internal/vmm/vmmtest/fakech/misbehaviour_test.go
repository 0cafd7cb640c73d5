// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// misbehaviour is a sentence about the knobs, which only the fake has.
type misbehaviour struct {
	sentence string
	script   func(*Script)
	run      func(*env)
}

func TestMisbehaviour(t *testing.T) {
	var all []misbehaviour
	for _, group := range [][]misbehaviour{faultSentences(), guestSentences(), endSentences(), agentSentences()} {
		all = append(all, group...)
	}
	for _, m := range all {
		t.Run(m.sentence, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, fakes()[1])
			e.script = Script{Control: true}
			if m.script != nil {
				m.script(&e.script)
			}
			if err := tinyELF(e.path("kernel")); err != nil {
				t.Fatal(err)
			}
			m.run(e)
		})
	}
}

func (e *env) arm(f Fault) { e.t.Helper(); e.must(e.control().Arm(f)) }

func faultSentences() []misbehaviour {
	return []misbehaviour{
		{"it exits before the next call, which is not executed", nil, func(e *env) {
			e.start()
			e.arm(Fault{Endpoint: "vm.create", Kind: FaultExit})
			e.get("vmm.ping").is(200, "")
			e.put("vm.create", e.config()).lost()
			e.ends(0)
			e.exists(true, "api")
			e.exists(false, "serial")
			e.sequence("vmm starting")
		}},
		{"it exits after a call is executed and before it is answered", nil, func(e *env) {
			e.start()
			e.arm(Fault{Endpoint: "vm.create", Kind: FaultExitAfter})
			e.put("vm.create", e.config()).lost()
			e.ends(0)
			e.exists(true, "serial")
		}},
		{"it holds an answer back", nil, func(e *env) {
			e.start()
			e.arm(Fault{Endpoint: "vm.create", Kind: FaultSilence, DelayMS: 300})
			began := time.Now()
			e.put("vm.create", e.config()).done()
			if took := time.Since(began); took < 300*time.Millisecond {
				e.t.Errorf("answered after %v", took)
			}
		}},
		{"it resets the connection of a call that is not executed", nil, func(e *env) {
			e.start()
			e.arm(Fault{Endpoint: "vm.create", Kind: FaultReset})
			a := e.put("vm.create", e.config())
			if a.lost(); !errors.Is(a.err, syscall.ECONNRESET) {
				e.t.Errorf("got %v, want a reset", a.err)
			}
			e.get("vm.info").fails(kindNotCreated, "The VM info is not available", "VM is not created")
		}},
		{"it closes the connection of a call that is executed", nil, func(e *env) {
			e.start()
			e.arm(Fault{Endpoint: "vm.create", Kind: FaultClose})
			e.put("vm.create", e.config()).lost()
			e.state("Created")
		}},
		{"it answers a given error without executing the call, as often as asked", nil, func(e *env) {
			e.start()
			e.put("vm.create", e.config()).done()
			e.arm(Fault{Endpoint: "vm.boot", Kind: FaultError, Status: 500, Body: `["Error from API","no"]`, Count: 2})
			e.put("vm.boot").is(500, `["Error from API","no"]`)
			e.put("vm.boot").is(500, `["Error from API","no"]`)
			e.put("vm.boot").done()
			e.arm(Fault{Kind: FaultError, Status: 429, Count: -1})
			e.get("vmm.ping").is(429, "")
			e.get("vm.info").is(429, "")
			e.must(e.control().Disarm())
			e.state("Running")
		}},
		{"a hanging boot keeps ping waiting", nil, func(e *env) {
			e.start()
			e.put("vm.create", e.config()).done()
			e.arm(Fault{Endpoint: "vm.boot", Kind: FaultHang, DelayMS: 400})
			began, booted := time.Now(), make(chan struct{})
			go func() {
				defer close(booted)
				e.do("PUT", "vm.boot", nil).done()
			}()
			e.until("the boot has arrived", func() bool {
				return len(e.events()) > 1 || time.Since(began) > 200*time.Millisecond
			})
			e.get("vmm.ping").is(200, "")
			if took := time.Since(began); took < 400*time.Millisecond {
				e.t.Errorf("ping answered after %v", took)
			}
			<-booted
		}},
		{"it is killed by a signal on a call", nil, func(e *env) {
			e.start()
			e.arm(Fault{Endpoint: "vm.info", Kind: FaultKill, Signal: int(syscall.SIGSEGV)})
			e.get("vm.info").lost()
			e.ends(-int(syscall.SIGSEGV))
			e.exists(true, "api")
		}},
		{"faults of the script are armed from the start", func(s *Script) {
			s.Faults = []Fault{{Endpoint: "vmm.ping", Kind: FaultError, Status: 500, Body: "[]"}}
		}, func(e *env) {
			e.start()
			e.get("vmm.ping").is(500, "[]")
			e.get("vmm.ping").is(200, "")
		}},
		{"a missing vhost-user socket blocks add-disk, then fails it", func(s *Script) {
			s.VhostUserTimeoutMS = 200
		}, func(e *env) {
			e.running(object{"memory": object{"size": 1 << 20, "shared": true}})
			began := time.Now()
			e.put("vm.add-disk", object{"id": "v", "vhost_user": true, "vhost_socket": e.path("backend")}).
				fails(kindInternal, noDisk, manager, "Cannot create vhost-user-blk device", "Connection to socket failed",
					"vhost-user: can't connect to peer: "+noFile)
			if took := time.Since(began); took < 200*time.Millisecond {
				e.t.Errorf("failed after %v", took)
			}
			ln, err := net.Listen("unix", e.path("backend"))
			e.must(err)
			defer ln.Close()
			e.put("vm.add-disk", object{"id": "v", "vhost_user": true, "vhost_socket": e.path("backend")}).is(200, "")
			e.put("vm.resize-disk", object{"id": "v", "desired_size": 512}).fails(kindNoDevice, noResize, manager, unknown+"v")
		}},
		{"a start that fails says why and leaves no socket", func(s *Script) { s.StartFailure = "no hypervisor" }, func(e *env) {
			e.spawn("--api-socket", e.api)
			e.ends(1)
			e.exists(false, "api")
			if !strings.Contains(e.stderr.String(), "1: no hypervisor") {
				e.t.Errorf("stderr %s", e.stderr.String())
			}
		}},
		{"a held back start makes the socket late", func(s *Script) { s.StartDelayMS = 200 }, func(e *env) {
			began := time.Now()
			e.start()
			if took := time.Since(began); took < 200*time.Millisecond {
				e.t.Errorf("socket after %v", took)
			}
		}},
	}
}

func endSentences() []misbehaviour {
	return []misbehaviour{
		{"a crash looks like a clean shutdown, even with --no-shutdown", nil, func(e *env) {
			e.running()
			e.must(e.control().Crash())
			e.ends(0)
			e.exists(false, "api", "serial")
			e.sequence("vmm starting", "vm booting", "vm booted", "vm shutdown", "vm deleted", "vmm shutdown")
		}},
		{"a reset made to fail exits 1 and leaves the API socket", nil, func(e *env) {
			e.running()
			e.must(e.control().FailReset())
			e.must(e.control().Reset())
			e.ends(1)
			e.exists(true, "api")
		}},
		{"it kills itself", nil, func(e *env) {
			e.running()
			e.must(e.control().Kill(int(syscall.SIGABRT)))
			e.ends(-int(syscall.SIGABRT))
			e.exists(true, "api", "serial")
		}},
		{"it ends by itself after a while", func(s *Script) { s.ExitAfterMS = 50 }, func(e *env) {
			e.spawn("--api-socket", e.api, "--event-monitor", "path="+e.path("events"))
			e.ends(0)
			e.exists(false, "api")
		}},
		{"it is killed after a while", func(s *Script) { s.KillAfterMS = 50 }, func(e *env) {
			e.spawn("--api-socket", e.api)
			e.ends(-int(syscall.SIGKILL))
		}},
		{"a broken script is refused", func(s *Script) { s.Version = "v12" }, func(e *env) {
			e.spawn("--api-socket", e.api)
			e.ends(1)
		}},
	}
}

func agentSentences() []misbehaviour {
	agent := func(s *Script) {
		s.QGAPort, s.EchoPort, s.GuestAddresses = 1234, 7, []string{"10.0.0.5/24", "fd00::5/64"}
	}
	return []misbehaviour{
		{"vsock leads to the guest agent and the echo", agent, func(e *env) {
			e.running(object{
				"vsock": object{"cid": 3, "socket": e.path("vsock")},
				"net":   []object{{"tap": "t0", "mac": "52:54:00:00:00:01"}},
			})
			c, r := e.connect("CONNECT 1234\n")
			if line, _ := r.ReadString('\n'); line != "OK 1073741825\n" {
				e.t.Errorf("got %q", line)
			}
			ask := func(request, want string) {
				e.t.Helper()
				fmt.Fprintf(c, "%s\n", request)
				if line, err := r.ReadString('\n'); !strings.Contains(line, want) {
					e.t.Errorf("%s: %q (%v), want %q", request, line, err, want)
				}
			}
			ask("\xff"+`{"execute":"guest-sync-delimited","arguments":{"id":7}}`, "\xff"+`{"return":7}`)
			ask(`{"execute":"guest-ping"}`, `{"return":{}}`)
			ask(`{"execute":"guest-network-get-interfaces"}`, `"ip-address":"10.0.0.5","ip-address-type":"ipv4","prefix":24`)
			ask(`{"execute":"guest-network-get-interfaces"}`, `52:54:00:00:00:01`)
			ask(`{"execute":"guest-exec"}`, `CommandNotFound`)
			echo, er := e.connect("connect 7\n")
			_, _ = er.ReadString('\n')
			fmt.Fprint(echo, "abc\n")
			if line, _ := er.ReadString('\n'); line != "abc\n" {
				e.t.Errorf("echo %q", line)
			}
			fmt.Fprintln(c, `{"execute":"guest-shutdown"}`)
			e.until("the machine is off", func() bool { return e.info().State == "Created" })
			e.exists(false, "vsock")
		}},
		{"a port nobody listens on and a malformed command close the connection", agent, func(e *env) {
			e.running(object{"vsock": object{"cid": 3, "socket": e.path("vsock")}})
			for _, command := range []string{"CONNECT 99\n", "HELLO\n", "CONNECT x\n", "CONNECT                                  1\n"} {
				_, r := e.connect(command)
				if line, err := r.ReadString('\n'); err == nil || line != "" {
					e.t.Errorf("%q: %q (%v)", command, line, err)
				}
			}
		}},
	}
}

func (e *env) connect(command string) (net.Conn, *bufio.Reader) {
	e.t.Helper()
	c, err := net.Dial("unix", e.path("vsock"))
	e.must(err)
	e.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(c, command)
	return c, bufio.NewReader(c)
}
