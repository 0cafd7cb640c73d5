// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest/fakech"
)

func TestACreateThatFailsOnceCanBeRepeated(t *testing.T) {
	for name, f := range map[string]fakech.Fault{
		"refused": {
			Kind: fakech.FaultError, Status: http.StatusInternalServerError,
			Body: `["Error from API","The VM could not be created","Error creating console devices","Error creating console device","Permission denied (os error 13)"]`,
		},
		"executed without an answer": {Kind: fakech.FaultClose},
		"connection reset":           {Kind: fakech.FaultReset},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, fakech.Script{})
			f.Endpoint = "vm.create"
			r.arm(f)
			if err := r.vm.Create(r.ctx(), r.cfg); err == nil {
				t.Fatal("the first create succeeded")
			}
			// Where it was refused, the definition may have stayed.
			if calls := r.calls(); f.Kind == fakech.FaultError && calls[len(calls)-1] != "PUT vm.delete" {
				t.Errorf("calls %v do not end with a delete", calls)
			}
			r.boot()
			r.wantState(vmm.StateRunning)
		})
	}
}

func TestALostAnswerOfAnyCallIsUnavailableAndCanBeAskedAgain(t *testing.T) {
	for _, kind := range []fakech.FaultKind{fakech.FaultReset, fakech.FaultClose} {
		for _, call := range []string{"vmm.ping", "vm.info", "vm.boot", "vm.shutdown", "vm.reboot", "vm.power-button"} {
			t.Run(string(kind)+" of "+call, func(t *testing.T) {
				r := newRig(t, fakech.Script{PowerButton: "ignore"})
				r.create()
				do := map[string]func(context.Context) error{
					"vm.boot": r.vm.Boot, "vm.shutdown": r.vm.PowerOff, "vm.reboot": r.vm.Reset, "vm.power-button": r.vm.PowerButton,
				}[call]
				if do == nil {
					do = func(ctx context.Context) error {
						_, err := r.vm.Inspect(ctx)
						return err
					}
				}
				if call != "vm.boot" {
					r.must("boot", r.vm.Boot(r.ctx()))
				}
				r.arm(fakech.Fault{Kind: kind, Endpoint: call})
				r.wantKind(call, do(r.ctx()), machine.Unavailable)
				r.must(call+" again", do(r.ctx()))
			})
		}
	}
}

func TestAVMMThatIsGoneBeforeItAnswersWasShutDown(t *testing.T) {
	for _, kind := range []fakech.FaultKind{fakech.FaultExit, fakech.FaultExitAfter, fakech.FaultKill} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t, fakech.Script{})
			r.boot()
			r.arm(fakech.Fault{Kind: kind, Endpoint: "vmm.shutdown"})
			r.must("shut down", r.vm.Shutdown(r.ctx()))
			r.awaitEnd()
			r.wantKind("shut down what is gone", r.vm.Shutdown(r.ctx()), machine.Unavailable)
		})
	}
}

func TestAVMMThatDiesWhileItBootsIsUnavailable(t *testing.T) {
	for _, kind := range []fakech.FaultKind{fakech.FaultExit, fakech.FaultExitAfter, fakech.FaultKill} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t, fakech.Script{})
			r.create()
			r.arm(fakech.Fault{Kind: kind, Endpoint: "vm.boot"})
			r.wantKind("boot", r.vm.Boot(r.ctx()), machine.Unavailable)
			r.awaitEnd()
			r.launch()
			r.boot()
			r.wantState(vmm.StateRunning)
		})
	}
}

// TestSilenceOfOneVMMDoesNotBlockAnother runs a whole life beside a VMM that does not answer for ten seconds.
func TestSilenceOfOneVMMDoesNotBlockAnother(t *testing.T) {
	silent := newRig(t, fakech.Script{})
	silent.boot()
	silent.arm(fakech.Fault{Kind: fakech.FaultSilence, Endpoint: "vm.info", DelayMS: 10_000})
	other := rigFor(t, silent.driver, fakeConfig)
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() { answered <- silent.vm.PowerOff(ctx) }()

	other.launch()
	other.boot()
	other.awaitEvent(vmm.EventBooted)
	other.must("reset", other.vm.Reset(other.ctx()))
	other.awaitEvent(vmm.EventGuestReset)
	other.must("shut down", other.vm.Shutdown(other.ctx()))
	other.awaitEnd()
	select {
	case err := <-answered:
		t.Fatalf("the silent VMM answered meanwhile, error %v: nothing is proven", err)
	default:
	}
	cancel()
	silent.wantKind("power off", <-answered, machine.Unavailable)
}

// A boot keeps the VMM's only thread busy; whoever asks meanwhile gets no answer, and that is not a death.
func TestATimeoutWhileAVMMIsBusyIsNoDeath(t *testing.T) {
	r := newRig(t, fakech.Script{BootDelayMS: 1500})
	r.create()
	booted := make(chan error, 1)
	go func() { booted <- r.vm.Boot(r.ctx()) }()
	unavailable := false
	for !unavailable {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err := r.vm.Inspect(ctx)
		cancel()
		unavailable = machine.IsKind(err, machine.Unavailable)
		select {
		case err := <-booted:
			t.Fatalf("the boot ended, error %v, and every question was answered", err)
		default:
		}
	}
	r.must("boot", <-booted)
	r.wantState(vmm.StateRunning)
}

func TestABootThatNobodyWaitedForIsFound(t *testing.T) {
	r := newRig(t, fakech.Script{BootDelayMS: 1000})
	r.create()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	r.wantKind("boot", r.vm.Boot(ctx), machine.Unavailable)
	r.must("boot again", r.vm.Boot(r.ctx()))
	r.wantState(vmm.StateRunning)
}

func TestConnectingIsTriedAgainUntilTheVMMAnswers(t *testing.T) {
	r := newRig(t, fakech.Script{})
	r.boot()
	for _, call := range []string{"vmm.ping", "vm.info"} {
		r.arm(fakech.Fault{Kind: fakech.FaultReset, Endpoint: call, Count: 3})
		r.connect()
		r.wantState(vmm.StateRunning)
	}
}

func TestASlowStartIsAwaited(t *testing.T) {
	r := newRig(t, fakech.Script{StartDelayMS: 700})
	r.wantState(vmm.StateEmpty)
}

func TestAPanicOfTheGuestIsTold(t *testing.T) {
	r := newRig(t, fakech.Script{})
	r.boot()
	r.must("panic", control(r.cfg.Ref).Panic())
	r.awaitEvent(vmm.EventGuestPanicked)
}

func TestEventsEndWhenTheVMMEndsByItself(t *testing.T) {
	r := newRig(t, fakech.Script{})
	r.boot()
	r.must("crash", control(r.cfg.Ref).Crash())
	r.awaitEnd()
	timeout := time.After(patience)
	for {
		select {
		case _, ok := <-r.vm.Events():
			if !ok {
				return
			}
		case <-timeout:
			t.Fatal("the channel of events stays open")
		}
	}
}

func TestAResetThatFailsLeavesNoObstacle(t *testing.T) {
	r := newRig(t, fakech.Script{FailReset: true})
	r.boot()
	r.must("reset", control(r.cfg.Ref).Reset())
	if exit := r.awaitEnd(); exit.Code != 1 {
		t.Errorf("the exit is %+v, want code 1", exit)
	}
	r.launch()
	r.boot()
	r.wantState(vmm.StateRunning)
}

func TestATruncatedEventFileMakesTheReaderLookAgain(t *testing.T) {
	r := newRig(t, fakech.Script{})
	r.boot()
	r.awaitEvent(vmm.EventBooted)
	r.must("truncate", os.Truncate(filepath.Join(r.cfg.RuntimeDir, "events"), 0))
	r.must("reset", r.vm.Reset(r.ctx()))
	r.awaitEvent(vmm.EventResync)
}

func TestAMachineWithoutAnEventFileCanBeManaged(t *testing.T) {
	r := newRig(t, fakech.Script{})
	r.boot()
	r.must("close", r.vm.Close())
	r.must("remove", os.Remove(filepath.Join(r.cfg.RuntimeDir, "events")))
	r.connect()
	r.must("power off", r.vm.PowerOff(r.ctx()))
	r.wantState(vmm.StateIdle)
}

func TestFirmwareBootsADisk(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script.json")
	if err := (fakech.Script{Control: true}).WriteFile(script); err != nil {
		t.Fatal(err)
	}
	firmware := filepath.Join(t.TempDir(), "CLOUDHV.fd")
	if err := os.WriteFile(firmware, []byte("firmware"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := newDriver(t, cloudhypervisor.Options{
		Binary: fakeBinary, Arch: "amd64", Firmware: firmware, Env: []string{fakech.ScriptEnv + "=" + script}, OpenTap: openNothing,
	})
	r := rigFor(t, d, fakeConfig)
	r.cfg.Boot = vmm.Boot{}
	r.launch()
	r.boot()
	info, err := r.raw().Info(r.ctx())
	r.must("info", err)
	if p := info.Config.Payload; p == nil || p.Firmware != firmware || p.Kernel != "" {
		t.Errorf("the payload is %+v", p)
	}
}

func TestAnotherMachinesConfigurationIsRefused(t *testing.T) {
	r := newRig(t, fakech.Script{})
	cfg := r.cfg
	cfg.StateDir = filepath.Dir(cfg.StateDir)
	r.wantKind("create", r.vm.Create(r.ctx(), cfg), machine.Invalid)
	r.wantState(vmm.StateEmpty)
}

// A connection of somebody who keeps all of the VMM's ten busy is waited out.
func TestExhaustedConnectionsAreUnavailable(t *testing.T) {
	r := newRig(t, fakech.Script{})
	r.create()
	r.arm(fakech.Fault{
		Kind: fakech.FaultError, Endpoint: "vm.info", Status: http.StatusServiceUnavailable,
		Body: `{ "error": "Too many open connections" }`,
	})
	_, err := r.vm.Inspect(r.ctx())
	r.wantKind("inspect", err, machine.Unavailable)
	r.wantState(vmm.StateIdle)
}

func TestErrorsSayWhatWasDone(t *testing.T) {
	r := newRig(t, fakech.Script{})
	err := r.vm.Boot(r.ctx())
	r.wantKind("boot", err, machine.FailedPrecondition)
	if !strings.HasPrefix(err.Error(), "boot guest: ") || errors.Is(err, vmm.ErrIdentity) {
		t.Errorf("error is %q", err)
	}
}
