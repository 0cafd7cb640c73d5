// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guestagent_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/guestagent"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/guestagent/agenttest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

const (
	patience = time.Minute            // for what has to come
	brief    = 100 * time.Millisecond // for what does not
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type answers = map[string]agenttest.Answer

func newClient(t *testing.T, a *agenttest.Agent, timeout time.Duration) *guestagent.Client {
	t.Helper()
	c, err := guestagent.New(guestagent.Options{Dial: a.Dial, Timeout: timeout, ShutdownWait: min(timeout, 300*time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAnAgentIsFoundBehindWhateverComesBeforeItsAnswer(t *testing.T) {
	complaint := `{"error": {"class": "GenericError", "desc": "JSON parse error, invalid token '\xff'"}}` + "\n"
	for name, script := range map[string]agenttest.Script{
		"nothing":                          {},
		"the handshake of a vsock":         {Vsock: true},
		"a complaint about the delimiter":  {Answers: answers{agenttest.Sync: {Before: []byte(complaint)}}},
		"half of an earlier answer":        {Greeting: []byte(`{"return": {"host-`)},
		"an answer to another id":          {Greeting: []byte("\xff{\"return\": 7}\n")},
		"an earlier answer":                {Greeting: []byte("{\"return\": {}}\n{\"return\": {}}\n")},
		"delimiters":                       {Greeting: []byte("\xff\xff\n\xff")},
		"text of a kernel":                 {Greeting: []byte("[    0.000000] Linux version 6.1\r\n")},
		"half a megabyte":                  {Greeting: []byte(strings.Repeat("x", 1<<19))},
		"garbage after the synchronising":  {Answers: answers{"guest-ping": {Before: []byte("\n\nnoise\n{}\n[]\n"), Return: struct{}{}}}},
		"an answer byte after byte":        {Answers: answers{agenttest.Sync: {Pause: time.Millisecond}}},
		"an answer that comes twice":       {Answers: answers{agenttest.Sync: {Times: 2}}},
		"a second answer of the last call": {Answers: answers{"guest-ping": {Times: 2, Return: struct{}{}}}},
	} {
		t.Run(name, func(t *testing.T) {
			a := agenttest.Start(t, script)
			c := newClient(t, a, patience)
			for range 2 {
				if err := c.Ping(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if d := cmp.Diff([]string{"guest-ping", "guest-ping"}, a.Calls()); d != "" {
				t.Errorf("calls (-want +got):\n%s", d)
			}
		})
	}
}

func TestAMisbehavingAgentIsAnErrorThatSaysHow(t *testing.T) {
	noAgent, timeout, protocol := guestagent.ErrNoAgent, guestagent.ErrTimeout, guestagent.ErrProtocol
	for name, c := range map[string]struct {
		script agenttest.Script
		want   []error
	}{
		"silence":                            {agenttest.Script{Answers: answers{agenttest.Sync: {Silent: true}}}, []error{noAgent, timeout}},
		"the end at once":                    {agenttest.Script{Answers: answers{agenttest.Sync: {Silent: true, HangUp: true}}}, []error{noAgent}},
		"the wrong id":                       {agenttest.Script{Answers: answers{agenttest.Sync: {Return: 1}}}, []error{noAgent, timeout}},
		"an answer without delimiter":        {agenttest.Script{Answers: answers{agenttest.Sync: {Raw: []byte("{\"return\": 1}\n")}}}, []error{noAgent, timeout}},
		"garbage without end":                {agenttest.Script{Answers: answers{agenttest.Sync: {Raw: []byte("garbage "), Times: 1 << 18}}}, []error{noAgent, protocol}},
		"garbage line after line":            {agenttest.Script{Answers: answers{agenttest.Sync: {Raw: []byte("garbage\n"), Times: 1 << 18}}}, []error{noAgent, protocol}},
		"half of the synchronising":          {agenttest.Script{Answers: answers{agenttest.Sync: {Half: true}}}, []error{noAgent, timeout}},
		"half of the synchronising, end":     {agenttest.Script{Answers: answers{agenttest.Sync: {Half: true, HangUp: true}}}, []error{noAgent, protocol}},
		"silence to the command":             {agenttest.Script{Answers: answers{"guest-ping": {Silent: true}}}, []error{timeout}},
		"half an answer":                     {agenttest.Script{Answers: answers{"guest-ping": {Half: true}}}, []error{timeout}},
		"half an answer, end":                {agenttest.Script{Answers: answers{"guest-ping": {Half: true, HangUp: true}}}, []error{protocol}},
		"the end instead of an answer":       {agenttest.Script{Answers: answers{"guest-ping": {Silent: true, HangUp: true}}}, []error{protocol}},
		"an answer that is too slow":         {agenttest.Script{Answers: answers{"guest-ping": {Return: "", Pause: time.Hour}}}, []error{timeout}},
		"an answer that is both":             {agenttest.Script{Answers: answers{"guest-ping": {Raw: []byte("{\"return\":{},\"error\":{}}\n")}}}, []error{timeout}},
		"a vsock that answers an empty line": {agenttest.Script{Vsock: true, Handshake: "\n"}, []error{noAgent, protocol}},
		"a vsock without a driver":           {agenttest.Script{Vsock: true, Handshake: agenttest.Silence}, []error{noAgent, timeout}},
		"a vsock that answers strangely":     {agenttest.Script{Vsock: true, Handshake: "OK then\n"}, []error{noAgent, protocol}},
		"a vsock that answers for ever":      {agenttest.Script{Vsock: true, Handshake: "OK " + strings.Repeat("1", 1<<20)}, []error{noAgent, protocol}},
		"a vsock with a port out of range":   {agenttest.Script{Vsock: true, Handshake: "OK 4294967296\n"}, []error{noAgent, protocol}},
	} {
		t.Run(name, func(t *testing.T) {
			limit := patience
			for _, e := range c.want {
				if errors.Is(e, timeout) {
					limit = brief
				}
			}
			err := newClient(t, agenttest.Start(t, c.script), limit).Ping(t.Context())
			if machine.KindOf(err) != machine.Unavailable {
				t.Errorf("error %v is %v, want unavailable", err, machine.KindOf(err))
			}
			if len(err.Error()) > 1000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			for _, one := range []error{noAgent, timeout, protocol} {
				want := false
				for _, e := range c.want {
					want = want || errors.Is(e, one)
				}
				if errors.Is(err, one) != want {
					t.Errorf("error %q is %q: %v, want %v", err, one, !want, want)
				}
			}
		})
	}
}

func TestARefusalCarriesWhatTheAgentSaid(t *testing.T) {
	long := strings.Repeat("ü\n", 1000)
	a := agenttest.Start(t, agenttest.Script{Answers: answers{
		"guest-ping":          {Error: &guestagent.Refusal{Class: "GenericError", Desc: long}},
		"guest-get-host-name": {Error: &guestagent.Refusal{Class: "CommandDisabled", Desc: "not today"}},
	}})
	c := newClient(t, a, patience)
	var r *guestagent.Refusal
	err := c.Ping(t.Context())
	if !errors.As(err, &r) || machine.KindOf(err) != machine.FailedPrecondition {
		t.Fatalf("error %v", err)
	}
	if r.Command != "guest-ping" || r.Class != "GenericError" || len(r.Desc) > 256 || !strings.HasPrefix(r.Desc, "ü?ü?") {
		t.Errorf("refusal %+v", r)
	}
	_, err = c.HostName(t.Context())
	if want := "the guest agent refused guest-get-host-name: CommandDisabled: not today"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	_, err = c.OSInfo(t.Context()) // not in the script
	if !errors.As(err, &r) || machine.KindOf(err) != machine.Unimplemented {
		t.Errorf("error %v is %v, want unimplemented", err, machine.KindOf(err))
	}
}

func TestAShutdownIsGivenUnlessItIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		answer agenttest.Answer
		kind   machine.Kind
		fails  bool
	}{
		"silence, as the real agent's":     {answer: agenttest.Answer{Silent: true}},
		"the end, as of a guest in a rush": {answer: agenttest.Answer{Silent: true, HangUp: true}},
		"half an answer and the end":       {answer: agenttest.Answer{Half: true, HangUp: true}},
		"an answer":                        {answer: agenttest.Answer{Return: struct{}{}}},
		"a failed program": {
			answer: agenttest.Answer{Error: &guestagent.Refusal{Class: "GenericError", Desc: "Failed to create child process"}},
			kind:   machine.FailedPrecondition, fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := agenttest.Start(t, agenttest.Script{Answers: answers{"guest-shutdown": c.answer}})
			err := newClient(t, a, patience).Shutdown(t.Context(), guestagent.PowerDown)
			if (err != nil) != c.fails || c.fails && machine.KindOf(err) != c.kind {
				t.Errorf("error %v", err)
			}
			if d := cmp.Diff([]string{`guest-shutdown {"mode":"powerdown"}`}, a.Calls()); d != "" {
				t.Errorf("calls (-want +got):\n%s", d)
			}
		})
	}
	t.Run("no agent", func(t *testing.T) {
		a := agenttest.Start(t, agenttest.Script{Answers: answers{agenttest.Sync: {Silent: true}}})
		err := newClient(t, a, brief).Shutdown(t.Context(), guestagent.Reboot)
		if !errors.Is(err, guestagent.ErrNoAgent) || len(a.Calls()) > 0 {
			t.Errorf("error %v, calls %v", err, a.Calls())
		}
	})
	t.Run("an unknown mode", func(t *testing.T) {
		a := agenttest.Start(t, agenttest.Script{})
		if err := newClient(t, a, brief).Shutdown(t.Context(), "explode"); !machine.IsKind(err, machine.Invalid) {
			t.Errorf("error %v", err)
		}
	})
}

func TestWhatAGuestTellsIsTakenOverInBounds(t *testing.T) {
	address := func(ip string, prefix int) map[string]any {
		return map[string]any{"ip-address": ip, "ip-address-type": "x", "prefix": prefix}
	}
	a := agenttest.Start(t, agenttest.Script{Answers: answers{
		"guest-network-get-interfaces": {Return: []any{
			map[string]any{"name": "lo", "ip-addresses": []any{address("127.0.0.1", 8), address("::1", 128)}},
			map[string]any{
				"name": "eth0\x1b[2J", "hardware-address": "52:54:00:AB:00:01", "statistics": map[string]int{"rx-bytes": 1},
				"ip-addresses": []any{address("10.0.2.15", 24), address("fe80::1%eth0", 64), address("10.0.0.1", 33), address("guest", 1), address("::", -1)},
			},
		}},
		"guest-get-osinfo": {Return: map[string]string{
			"id": "debian", "name": "Debian GNU/Linux", "pretty-name": "Debian GNU/Linux 12 (bookworm)", "version": "12 (bookworm)",
			"version-id": "12", "kernel-release": strings.Repeat("6", 100), "kernel-version": "#1\tSMP", "machine": "x86_64", "variant": "?",
		}},
		"guest-get-host-name": {Return: map[string]string{"host-name": "web-1"}},
	}})
	c := newClient(t, a, patience)
	interfaces, err := c.Interfaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []guestagent.Interface{
		{Name: "lo", Addresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("::1/128")}},
		{Name: "eth0?[2J", MAC: "52:54:00:ab:00:01", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.2.15/24"), netip.MustParsePrefix("fe80::1/64")}},
	}
	if d := cmp.Diff(want, interfaces, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Errorf("interfaces (-want +got):\n%s", d)
	}
	info, err := c.OSInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(guestagent.OSInfo{
		ID: "debian", Name: "Debian GNU/Linux", PrettyName: "Debian GNU/Linux 12 (bookworm)", Version: "12 (bookworm)",
		VersionID: "12", KernelRelease: strings.Repeat("6", 64), KernelVersion: "#1?SMP", Machine: "x86_64",
	}, info); d != "" {
		t.Errorf("operating system (-want +got):\n%s", d)
	}
	if name, err := c.HostName(t.Context()); err != nil || name != "web-1" {
		t.Errorf("host name %q, error %v", name, err)
	}
}

func TestAResultOfAnotherShapeIsAnError(t *testing.T) {
	for name, result := range map[string]any{"a number": 1, "a text": "x", "a list": []any{1}, "null": nil} {
		t.Run(name, func(t *testing.T) {
			a := agenttest.Start(t, agenttest.Script{Answers: answers{"guest-get-host-name": {Return: result}}})
			_, err := newClient(t, a, patience).HostName(t.Context())
			if !errors.Is(err, guestagent.ErrProtocol) || machine.KindOf(err) != machine.Unavailable {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestAGuestOfManyInterfacesIsCutOff(t *testing.T) {
	var list []any
	for i := range 100 {
		var addresses []any
		for j := range 100 {
			addresses = append(addresses, map[string]any{"ip-address": fmt.Sprintf("10.0.%d.%d", i, j), "prefix": 32})
		}
		list = append(list, map[string]any{"name": fmt.Sprintf("eth%d", i), "ip-addresses": addresses})
	}
	a := agenttest.Start(t, agenttest.Script{Answers: answers{"guest-network-get-interfaces": {Return: list}}})
	got, err := newClient(t, a, patience).Interfaces(t.Context())
	if err != nil || len(got) != 64 || len(got[0].Addresses) != 64 {
		t.Errorf("%d interfaces, error %v", len(got), err)
	}
}

func TestCallersWaitForTheirTurnAndMayGiveUp(t *testing.T) {
	a := agenttest.Start(t, agenttest.Script{Answers: answers{"guest-get-host-name": {Silent: true}}})
	c := newClient(t, a, patience)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.HostName(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, guestagent.ErrNoAgent) {
			t.Errorf("the call that was given up: %v", err)
		}
	})
	for deadline := time.Now().Add(patience); len(a.Calls()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the first call does not come")
		}
	}
	short, stop := context.WithTimeout(t.Context(), brief)
	defer stop()
	if err := c.Ping(short); !errors.Is(err, context.DeadlineExceeded) || !machine.IsKind(err, machine.Unavailable) {
		t.Errorf("the call that waits: %v", err)
	}
	for range 8 {
		wg.Go(func() {
			if err := c.Ping(t.Context()); err != nil {
				t.Errorf("a call after its turn: %v", err)
			}
		})
	}
	cancel()
	wg.Wait()
	if len(a.Calls()) != 9 {
		t.Errorf("calls are %v", a.Calls())
	}
}

func TestNobodyListens(t *testing.T) {
	for name, dial := range map[string]func(context.Context, string) error{
		"unix": func(ctx context.Context, path string) error { _, err := guestagent.DialUnix(ctx, path); return err },
		"vsock": func(ctx context.Context, path string) error {
			_, err := guestagent.DialVsock(ctx, path, guestagent.VsockPort)
			return err
		},
	} {
		if err := dial(t.Context(), t.TempDir()+"/none"); !machine.IsKind(err, machine.Unavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a := agenttest.Start(t, agenttest.Script{Vsock: true, Handshake: agenttest.Silence})
	ctx, cancel := context.WithTimeout(t.Context(), brief)
	defer cancel()
	if _, err := a.Dial(ctx); !errors.Is(err, context.DeadlineExceeded) || !machine.IsKind(err, machine.Unavailable) {
		t.Errorf("a silent vsock: %v", err)
	}
	if _, err := guestagent.DialVsock(t.Context(), a.Path(), 1); !machine.IsKind(err, machine.Unavailable) || !strings.Contains(err.Error(), "nobody listens") {
		t.Errorf("another port: %v", err)
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	dial := agenttest.Start(t, agenttest.Script{}).Dial
	for name, o := range map[string]guestagent.Options{
		"no dialler":         {},
		"a negative timeout": {Dial: dial, Timeout: -1},
		"a negative wait":    {Dial: dial, ShutdownWait: -1},
		"a wait too long":    {Dial: dial, Timeout: time.Second, ShutdownWait: time.Minute},
	} {
		if _, err := guestagent.New(o); !machine.IsKind(err, machine.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
