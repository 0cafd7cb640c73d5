// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a time that only the test moves.
type clock struct{ at atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.at.Store(time.Unix(1_800_000_000, 0).UnixNano())
	return c
}

func (c *clock) now() time.Time       { return time.Unix(0, c.at.Load()) }
func (c *clock) pass(d time.Duration) { c.at.Add(int64(d)) }

func registry(t testing.TB, o health.Options, checks ...health.Check) *health.Registry {
	t.Helper()
	r := health.New(o)
	t.Cleanup(r.Close)
	if err := r.Add(checks...); err != nil {
		t.Fatal(err)
	}
	return r
}

func answer(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

func get(t testing.TB, r *health.Registry, path string) (int, health.Report) {
	t.Helper()
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	var report health.Report
	if err := json.Unmarshal(w.Body.Bytes(), &report); err != nil {
		t.Fatalf("%s: %v in %q", path, err, w.Body)
	}
	return w.Code, report
}

func TestTheTwoQuestionsAreAnsweredByTheirOwnChecks(t *testing.T) {
	gate := health.NewGate("the IRI socket is not open yet")
	r := registry(t, health.Options{},
		health.Check{Name: "well", For: health.Live | health.Ready, Probe: answer(nil)},
		health.Check{Name: "store", For: health.Live, Probe: answer(errors.New("no space left on device"))},
		gate.Check("iri", health.Ready))
	code, report := get(t, r, "/healthz")
	if code != 503 || report.OK || len(report.Checks) != 2 || report.Checks[1].Error != "no space left on device" {
		t.Errorf("live: %d %+v", code, report)
	}
	if code, report = get(t, r, "/healthz?exclude=store"); code != 200 || !report.OK {
		t.Errorf("live without the store: %d %+v", code, report)
	}
	if code, report = get(t, r, "/readyz"); code != 503 || report.Checks[1].Error != "the IRI socket is not open yet" {
		t.Errorf("ready before the socket is open: %d %+v", code, report)
	}
	gate.Open()
	if code, report = get(t, r, "/readyz"); code != 200 || !report.OK {
		t.Errorf("ready: %d %+v", code, report)
	}
}

func TestThatTheDaemonStartsIsNoWarning(t *testing.T) {
	var log bytes.Buffer
	gate := health.NewGate("the IRI socket is not open yet")
	r := registry(t, health.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, gate.Check("iri-socket", health.Ready))
	get(t, r, "/readyz")
	gate.Open()
	get(t, r, "/readyz")
	if got := log.String(); strings.Contains(got, "WARN") || !strings.Contains(got, "is not open yet") || !strings.Contains(got, "well again") {
		t.Errorf("logged %s", got)
	}
}

func TestNothingElseIsServed(t *testing.T) {
	r := registry(t, health.Options{})
	for _, c := range []struct {
		method, path string
		want         int
	}{{"GET", "/", 404}, {"GET", "/metrics", 404}, {"GET", "/statusz", 404}, {"POST", "/healthz", 405}, {"HEAD", "/healthz", 200}} {
		w := httptest.NewRecorder()
		r.Handler().ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		if w.Code != c.want {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, w.Code, c.want)
		}
	}
}

func TestAFloodOfQuestionsAsksOnce(t *testing.T) {
	var runs atomic.Int32
	release := make(chan struct{})
	r := registry(t, health.Options{}, health.Check{
		Name: "slow", For: health.Live, Timeout: time.Minute, MaxAge: time.Hour,
		Probe: func(context.Context) error { runs.Add(1); <-release; return nil },
	})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if !r.Report(t.Context(), health.Live).OK {
				t.Error("not live")
			}
		})
	}
	close(release)
	wg.Wait()
	for range 1000 {
		r.Report(t.Context(), health.Live)
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestACheckThatHangsFailsInTimeAndIsNotPiledUp(t *testing.T) {
	var runs atomic.Int32
	release := make(chan struct{})
	r := registry(t, health.Options{}, health.Check{
		Name: "hangs", For: health.Live, Timeout: 20 * time.Millisecond,
		Probe: func(context.Context) error { runs.Add(1); <-release; return nil },
	})
	defer close(release)
	for range 5 {
		report := r.Report(t.Context(), health.Live)
		if report.OK || report.Checks[0].Error != "no answer within 20ms" {
			t.Fatalf("%+v", report)
		}
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
	if last := r.Last(); len(last) != 1 || last[0].OK {
		t.Errorf("last: %+v", last)
	}
}

func TestABackgroundCheckShowsItsLastAnswerWhileItAsks(t *testing.T) {
	c := newClock()
	block := make(chan struct{}, 1)
	var runs atomic.Int32
	r := registry(t, health.Options{Now: c.now}, health.Check{
		Name: "write", For: health.Live, Background: true, MaxAge: 5 * time.Second, Timeout: 10 * time.Second,
		Probe: func(context.Context) error {
			if runs.Add(1) > 1 {
				<-block
				return errors.New("disk gone")
			}
			return nil
		},
	})
	if !r.Report(t.Context(), health.Live).OK {
		t.Fatal("first answer")
	}
	c.pass(6 * time.Second)
	if !r.Report(t.Context(), health.Live).OK { // starts the second run, which blocks
		t.Error("the last answer is not shown while a new one is sought")
	}
	c.pass(11 * time.Second)
	report := r.Report(t.Context(), health.Live)
	if report.OK || report.Checks[0].Error != "no answer within 10s" {
		t.Errorf("a run that is late: %+v", report)
	}
	block <- struct{}{}
	deadline := time.Now().Add(10 * time.Second)
	for r.Last()[0].Error != "disk gone" {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", r.Last())
		}
		time.Sleep(time.Millisecond)
	}
}

func TestChecksAreAskedAlthoughNobodyDoes(t *testing.T) {
	asked := make(chan struct{}, 1000)
	r := registry(t, health.Options{}, health.Check{
		Name: "x", For: health.Ready, MaxAge: time.Nanosecond,
		Probe: func(context.Context) error { asked <- struct{}{}; return nil },
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, time.Millisecond) }()
	<-asked
	<-asked
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAPanicOfACheckIsItsFailure(t *testing.T) {
	r := registry(t, health.Options{}, health.Check{Name: "p", For: health.Live, Probe: func(context.Context) error { panic("x") }})
	if report := r.Report(t.Context(), health.Live); report.OK || report.Checks[0].Error != "the check panicked: x" {
		t.Errorf("%+v", report)
	}
}

func TestSinceMovesWithTheAnswerAlone(t *testing.T) {
	c := newClock()
	var failure atomic.Pointer[error]
	r := registry(t, health.Options{Now: c.now}, health.Check{Name: "x", For: health.Live, Probe: func(context.Context) error {
		if e := failure.Load(); e != nil {
			return *e
		}
		return nil
	}})
	began := r.Report(t.Context(), health.Live).Checks[0].Since
	c.pass(time.Minute)
	if got := r.Report(t.Context(), health.Live).Checks[0]; !got.Since.Equal(began) || got.At.Equal(began) {
		t.Errorf("well: %+v", got)
	}
	err := errors.New("bad")
	failure.Store(&err)
	c.pass(time.Minute)
	if got := r.Report(t.Context(), health.Live).Checks[0]; !got.Since.Equal(c.now()) {
		t.Errorf("bad: %+v", got)
	}
}

func TestChecksAreRefused(t *testing.T) {
	r := registry(t, health.Options{}, health.Check{Name: "a", For: health.Live, Probe: answer(nil)})
	for name, c := range map[string]health.Check{
		"without a name":    {For: health.Live, Probe: answer(nil)},
		"without a purpose": {Name: "b", Probe: answer(nil)},
		"without a probe":   {Name: "b", For: health.Live},
		"twice":             {Name: "a", For: health.Live, Probe: answer(nil)},
	} {
		if r.Add(c) == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// many is a server full of VMMs.
type many struct {
	ids   []string
	stuck func(id string) bool

	mu    sync.Mutex
	asked []string
}

func (m *many) Connected() []string { return m.ids }

func (m *many) Ask(ctx context.Context, id string) error {
	m.mu.Lock()
	m.asked = append(m.asked, id)
	m.mu.Unlock()
	if m.stuck != nil && m.stuck(id) {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func TestVMMsAreAskedInTurn(t *testing.T) {
	m := &many{ids: []string{"a", "b", "c"}}
	probe := health.VMMCheck(m).Probe
	for range 6 {
		if err := probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"a", "b", "c", "a", "b", "c"}; !slices.Equal(m.asked, want) {
		t.Errorf("asked %v", m.asked)
	}
}

func TestStuckMachinesDoNotFailLiveness(t *testing.T) {
	for name, c := range map[string]struct {
		ids   []string
		stuck string
		fails bool
	}{
		"no machine":              {},
		"the only one is stuck":   {ids: []string{"a"}, stuck: "a"},
		"one of two is stuck":     {ids: []string{"a", "b"}, stuck: "a"},
		"three of four are stuck": {ids: []string{"a", "b", "c", "d"}, stuck: "abc"},
		"all are stuck":           {ids: []string{"a", "b", "c"}, stuck: "abc", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &many{ids: c.ids, stuck: func(id string) bool { return slices.Contains([]rune(c.stuck), []rune(id)[0]) }}
			if err := health.VMMCheck(m).Probe(t.Context()); (err != nil) != c.fails {
				t.Errorf("%v", err)
			}
		})
	}
}
