// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/event"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/health"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/status"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/reconcile"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

type shelf struct{ machines []*machine.Machine }

func (s *shelf) List() []*machine.Machine { return s.machines }
func (s *shelf) Usage(...string) store.Usage {
	return store.Usage{Machines: int64(len(s.machines)), CPUs: 6, MemoryBytes: 3 << 30}
}

func (s *shelf) Quarantined() []store.Quarantined {
	return []store.Quarantined{{Key: "damaged-1", Reason: "checksum differs", At: now}}
}

const secret = "TOP-SECRET"

func newMachine(id string, state machine.State) *machine.Machine {
	m := &machine.Machine{ID: id, Desired: machine.Desired{
		Class: "small", CreatedAt: now.Add(-time.Hour), Ignition: []byte(secret),
		Annotations: map[string]string{"a": secret},
		Labels: map[string]string{
			"machinepoollet.ironcore.dev/machine-namespace": "team", "machinepoollet.ironcore.dev/machine-name": "<b>" + id, "other": secret,
		},
		Volumes: []machine.Volume{{Name: "v", Connection: &machine.Connection{SecretData: map[string][]byte{"key": []byte(secret)}}}},
	}, Record: machine.Record{State: state}}
	m.Record.SetCondition(machine.Condition{Type: reconcile.ConditionReady, Status: machine.ConditionTrue, Reason: string(state), LastTransition: now})
	return m
}

func stuck(id, step, message string, since time.Duration) *machine.Machine {
	m := newMachine(id, machine.Pending)
	m.Record.SetCondition(machine.Condition{
		Type: reconcile.ConditionReady, Status: machine.ConditionFalse, Reason: step, Message: message, LastTransition: now.Add(-since),
	})
	return m
}

func handler(t testing.TB, machines ...*machine.Machine) http.Handler {
	t.Helper()
	events, err := event.New(event.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 80 {
		events.Record(event.Involved{ID: "m1", Labels: map[string]string{"x": secret}}, event.Warning, "StepFailed", "Reconcile", fmt.Sprintf("<script>%d</script>", i))
	}
	checks := health.New(health.Options{})
	t.Cleanup(checks.Close)
	if err := checks.Add(health.Check{Name: "store", For: health.Live, Probe: func(context.Context) error { return errors.New("disk full") }}); err != nil {
		t.Fatal(err)
	}
	classes, err := class.NewSet([]class.Class{{Name: "small", Resources: map[string]int64{class.CPU: 1, class.Memory: 1 << 30}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := status.New(status.Options{
		Version: "1.2.3", Node: "server-7", Started: now.Add(-time.Hour), Supervisor: "systemd", Store: &shelf{machines},
		Drivers: []status.Driver{{Name: "qemu", Version: "10.0.0", Binary: "/usr/bin/qemu", Chosen: true, Reasons: []string{"no /dev/kvm"}}},
		Classes: classes, Host: class.Host{CPUs: 8, MemoryBytes: 16 << 30}, Reserve: class.Reserve{MemoryPerMachine: 64 << 20},
		Events: events, Health: checks, Queue: func() int { return 4 }, Now: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	h, err := s.Handler()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func get(h http.Handler, target, accept string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func page(t *testing.T, h http.Handler) status.Page {
	t.Helper()
	var p status.Page
	if err := json.Unmarshal(get(h, "/statusz?format=json", "").Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestThePageSaysWhatDoesNotGoOnTheLongestFirst(t *testing.T) {
	deleted := newMachine("d1", machine.Terminating)
	at := now.Add(-10 * time.Minute)
	deleted.Desired.DeletedAt = &at
	fresh := newMachine("f1", "")
	fresh.Record.Conditions = nil
	p := page(t, handler(t, newMachine("m1", machine.Running), stuck("s1", "vmm.boot", "no memory", time.Minute), deleted,
		stuck("s2", "volume.prepare", "disk full", 30*time.Minute), fresh))
	var got []string
	for _, w := range p.Waiting {
		got = append(got, fmt.Sprintf("%s %s %s %s", w.Machine, w.Step, p.Now.Sub(w.Since), w.Error))
	}
	want := "f1 not looked at yet 1h0m0s |s2 volume.prepare 30m0s disk full|d1 deletion 10m0s |s1 vmm.boot 1m0s no memory"
	if strings.Join(got, "|") != want {
		t.Errorf("%s", strings.Join(got, "|"))
	}
	if p.Version != "1.2.3" || p.Node != "server-7" || p.Machines["Running"] != 1 || p.Machines["Pending"] != 3 || p.Queue != 4 {
		t.Errorf("%+v", p)
	}
	if p.Live.OK || p.Live.Checks[0].Error != "disk full" || !p.Ready.OK {
		t.Errorf("health: %+v %+v", p.Live, p.Ready)
	}
	if c := p.Capacity; c.CPUs != 8 || c.CPUsUsed != 6 || c.MemoryUsed != 3<<30+5*64<<20 || p.Classes[0].Machines != 5 || p.Classes[0].Quantity != 8 {
		t.Errorf("capacity: %+v %+v", c, p.Classes)
	}
	if len(p.Events) != 50 || p.Events[0].Message != "<script>79</script>" || len(p.Quarantined) != 1 {
		t.Errorf("%d events, %+v", len(p.Events), p.Events[0])
	}
}

func TestAPersonGetsAPageAndAProgramJSON(t *testing.T) {
	h := handler(t, newMachine("m1", machine.Running))
	for _, c := range []struct{ target, accept, want string }{
		{"/statusz", "", "text/html; charset=utf-8"},
		{"/statusz", "text/html,application/xhtml+xml,*/*;q=0.8", "text/html; charset=utf-8"},
		{"/statusz", "application/json", "application/json"},
		{"/statusz?format=json", "text/html", "application/json"},
		{"/statusz?format=html", "application/json", "text/html; charset=utf-8"},
	} {
		if got := get(h, c.target, c.accept).Header().Get("Content-Type"); got != c.want {
			t.Errorf("%s as %q: %s", c.target, c.accept, got)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/statusz", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

func TestWhatOthersWriteIsEscapedAndSecretsAreNotThere(t *testing.T) {
	h := handler(t, stuck("s1", "vmm.boot", "<img src=x>", time.Minute), newMachine("m1", machine.Running))
	html := get(h, "/statusz", "").Body.String()
	for _, bad := range []string{"<script>", "<img", "team/<b>", "http://", "https://", "src="} {
		if strings.Contains(strings.ReplaceAll(html, "&lt;img src=x&gt;", ""), bad) {
			t.Errorf("the page holds %s", bad)
		}
	}
	for _, good := range []string{"server-7", "1.2.3", "&lt;img src=x&gt;", "team/&lt;b&gt;s1", "no /dev/kvm", "disk full", "3.125 GiB", "16 GiB", "checksum differs"} {
		if !strings.Contains(html, good) {
			t.Errorf("the page lacks %s", good)
		}
	}
	for _, text := range []string{html, get(h, "/statusz?format=json", "").Body.String()} {
		if strings.Contains(text, secret) {
			t.Error("a secret is shown")
		}
	}
}

func TestThePageDoesNotGrowWithTheMachines(t *testing.T) {
	var many []*machine.Machine
	for i := range 1000 {
		many = append(many, stuck(fmt.Sprint("s", i), "vmm.boot", strings.Repeat("ä", 10_000), time.Duration(i)*time.Second))
	}
	h := handler(t, many...)
	if p := page(t, h); len(p.Waiting) != 100 || p.More != 900 || p.Waiting[0].Machine != "s999" || len(p.Waiting[0].Error) > 510 {
		t.Errorf("%d shown, %d more, first %s", len(p.Waiting), p.More, p.Waiting[0].Machine)
	}
	if n := get(h, "/statusz", "").Body.Len(); n > 200<<10 {
		t.Errorf("the page has %d bytes", n)
	}
}

func TestOptionsAreNeeded(t *testing.T) {
	if _, err := status.New(status.Options{}); err == nil {
		t.Error("made of nothing")
	}
}
