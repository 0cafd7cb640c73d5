// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDirEnv); dir != "" {
		crashWriter(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

func testMachine(id string) *machine.Machine {
	image := "registry.example/demo:1"
	return &machine.Machine{
		ID: id,
		Desired: machine.Desired{
			Labels:      map[string]string{UIDLabel: "uid-" + id, "machinepoollet.ironcore.dev/machine-name": "name-" + id},
			Annotations: map[string]string{"machinepoollet.ironcore.dev/machine-generation": "0"},
			CreatedAt:   epoch,
			Power:       machine.PowerOn,
			Class:       "small",
			Resources:   machine.Resources{CPUs: 2, MemoryBytes: 2 << 30},
			Ignition:    make([]byte, 600),
			Volumes:     []machine.Volume{{Name: "root", Device: "oda", LocalDisk: &machine.LocalDisk{Image: &image}}},
			NICs:        []machine.NetworkInterface{{Name: "eth0", IPs: []string{"10.0.0.1"}}},
		},
		Record: machine.Record{State: machine.Pending},
	}
}

func open(t testing.TB, dir string) *Store {
	t.Helper()
	return openWith(t, Options{Dir: dir})
}

func openWith(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatalf("open store: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func reopen(t testing.TB, s *Store) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("close store: %v", err)
	}
	return openWith(t, Options{Dir: s.dir, Logger: s.log, hooks: s.hooks})
}

func create(t testing.TB, s *Store, id string) *machine.Machine {
	t.Helper()
	m, err := s.Create(context.Background(), testMachine(id))
	if err != nil {
		t.Fatalf("create %s: %v", id, err)
	}
	return m
}

func wantKind(t testing.TB, err error, kind machine.Kind) {
	t.Helper()
	if !machine.IsKind(err, kind) {
		t.Fatalf("got error %v (%v), want kind %v", err, machine.KindOf(err), kind)
	}
}

func TestWhatIsWrittenIsThereAfterReopening(t *testing.T) {
	ctx := context.Background()
	s := open(t, t.TempDir())
	created := create(t, s, "a")
	want := testMachine("a")
	want.Version = 1
	if d := cmp.Diff(want, created); d != "" {
		t.Fatalf("created machine differs (-want +got):\n%s", d)
	}
	create(t, s, "gone")
	if err := s.Remove(ctx, "gone"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.UpdateDesired(ctx, "a", 1, func(d *machine.Desired) error { d.Power = machine.PowerOff; return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := s.UpdateRecord(ctx, "a", func(r *machine.Record) error { r.State = machine.Running; return nil }); err != nil {
		t.Fatal(err)
	}
	id := s.ID()
	s = reopen(t, s)
	if id == "" || s.ID() != id {
		t.Errorf("identity %q became %q", id, s.ID())
	}
	want.Version, want.Desired.Power, want.Record.State = 3, machine.PowerOff, machine.Running
	if d := cmp.Diff([]*machine.Machine{want}, s.List()); d != "" {
		t.Fatalf("list differs (-want +got):\n%s", d)
	}
	_, err := s.Get("gone")
	wantKind(t, err, machine.NotFound)
}

func TestCreateRefusesDuplicates(t *testing.T) {
	ctx := context.Background()
	s := open(t, t.TempDir())
	a := create(t, s, "a")
	sameUID, noUID, emptyUID := testMachine("b"), testMachine("c"), testMachine("d")
	sameUID.Desired.Labels = a.Desired.Labels
	noUID.Desired.Labels = nil
	emptyUID.Desired.Labels = map[string]string{UIDLabel: ""}
	for _, m := range []*machine.Machine{testMachine("a"), sameUID} {
		_, err := s.Create(ctx, m)
		wantKind(t, err, machine.AlreadyExists)
		var dup *DuplicateError
		if !errors.As(err, &dup) || dup.Existing != a {
			t.Fatalf("create %s: got %v, want a DuplicateError with the existing machine", m.ID, err)
		}
	}
	for _, m := range []*machine.Machine{noUID, emptyUID} {
		if _, err := s.Create(ctx, m); err != nil {
			t.Fatalf("create %s: %v", m.ID, err)
		}
	}
	if err := s.Remove(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(ctx, sameUID); err != nil {
		t.Fatalf("label is free again, yet: %v", err)
	}
	_, err := s.UpdateDesired(ctx, "c", 0, func(d *machine.Desired) error {
		d.Labels = map[string]string{UIDLabel: "uid-a"}
		return nil
	})
	wantKind(t, err, machine.AlreadyExists)
	for _, id := range []string{"", string(make([]byte, 300))} {
		_, err := s.Create(ctx, &machine.Machine{ID: id})
		wantKind(t, err, machine.Invalid)
	}
}

func TestConcurrentCreatesOfOneLabelMakeOneMachine(t *testing.T) {
	s := open(t, t.TempDir())
	var wg sync.WaitGroup
	var made sync.Map
	for i := range 32 {
		wg.Go(func() {
			m := testMachine(fmt.Sprintf("m%02d", i))
			m.Desired.Labels = map[string]string{UIDLabel: "one"}
			if got, err := s.Create(context.Background(), m); err == nil {
				made.Store(got.ID, true)
			} else if !machine.IsKind(err, machine.AlreadyExists) {
				t.Errorf("create: %v", err)
			}
		})
	}
	wg.Wait()
	n := 0
	made.Range(func(any, any) bool { n++; return true })
	if n != 1 || len(s.List()) != 1 {
		t.Fatalf("%d creates succeeded, %d machines are listed, want 1 and 1", n, len(s.List()))
	}
}

func TestUpdateThatChangesNothingWritesNothing(t *testing.T) {
	ctx := context.Background()
	s := openWith(t, Options{Dir: t.TempDir(), hooks: hooks{checkpointAfter: time.Hour}})
	before := create(t, s, "a")
	stat := func() (files string) {
		for _, name := range []string{fileName, journalName} {
			data, err := os.ReadFile(filepath.Join(s.dir, name))
			if err != nil {
				t.Fatal(err)
			}
			files += string(data)
		}
		return files
	}
	file := stat()
	for name, fn := range map[string]func(*machine.Desired) error{
		"ErrUnchanged": func(d *machine.Desired) error { d.Class = "x"; return fmt.Errorf("say: %w", ErrUnchanged) },
		"equal value":  func(d *machine.Desired) error { d.Class = "small"; return nil },
		"value that reads the same": func(d *machine.Desired) error {
			d.GuestConfig, d.Ignition = nil, append([]byte{}, d.Ignition...)
			d.CreatedAt = d.CreatedAt.In(time.UTC)
			return nil
		},
	} {
		got, err := s.UpdateDesired(ctx, "a", before.Version, fn)
		if err != nil || got != before {
			t.Errorf("%s: got %v, %v, want the machine as it was", name, got, err)
		}
	}
	if got, err := s.UpdateRecord(ctx, "a", func(*machine.Record) error { return ErrUnchanged }); err != nil || got != before {
		t.Errorf("record: got %v, %v", got, err)
	}
	if stat() != file {
		t.Error("the file changed")
	}
}

func TestUpdatesRefuseWhatMustNotHappen(t *testing.T) {
	ctx := context.Background()
	s := open(t, t.TempDir())
	a := create(t, s, "a")
	boom := errors.New("boom")
	update := func(version uint64, fn func(*machine.Desired) error) error {
		_, err := s.UpdateDesired(ctx, "a", version, fn)
		return err
	}
	wantKind(t, update(7, func(d *machine.Desired) error { d.Class = "x"; return nil }), machine.Conflict)
	wantKind(t, update(0, func(d *machine.Desired) error { d.CreatedAt = epoch.Add(1); return nil }), machine.Invalid)
	if err := update(0, func(d *machine.Desired) error { d.Class = "x"; return boom }); !errors.Is(err, boom) {
		t.Fatalf("got %v, want the error of the function", err)
	}
	if err := update(0, func(*machine.Desired) error { panic("oops") }); err == nil {
		t.Fatal("a panic in the function was taken for success")
	}
	if got, _ := s.Get("a"); got != a {
		t.Fatal("a refused update changed the machine")
	}
	if err := update(1, func(d *machine.Desired) error { now := epoch; d.DeletedAt = &now; return nil }); err != nil {
		t.Fatal(err)
	}
	wantKind(t, update(0, func(d *machine.Desired) error { d.DeletedAt = nil; return nil }), machine.Invalid)
	_, err := s.UpdateDesired(ctx, "nobody", 0, func(*machine.Desired) error { return nil })
	wantKind(t, err, machine.NotFound)
	_, err = s.UpdateRecord(ctx, "nobody", func(*machine.Record) error { return nil })
	wantKind(t, err, machine.NotFound)
	wantKind(t, s.Remove(ctx, "nobody"), machine.NotFound)
}

func TestSnapshotsNeverChange(t *testing.T) {
	ctx := context.Background()
	s := open(t, t.TempDir())
	input := testMachine("a")
	m, err := s.Create(ctx, input)
	if err != nil {
		t.Fatal(err)
	}
	input.Desired.Labels["x"] = "y"
	list := s.List()
	labels := map[string]string{"kept": "by caller"}
	if _, err := s.UpdateDesired(ctx, "a", 0, func(d *machine.Desired) error { d.NICs[0].IPs[0] = "changed"; d.Labels = labels; return nil }); err != nil {
		t.Fatal(err)
	}
	labels["later"] = "change"
	create(t, s, "b")
	want := testMachine("a")
	want.Version = 1
	if d := cmp.Diff([]*machine.Machine{want}, list); d != "" {
		t.Errorf("an old list changed:\n%s", d)
	}
	if d := cmp.Diff(want, m); d != "" {
		t.Errorf("an old machine changed:\n%s", d)
	}
	if got, _ := s.Get("a"); len(got.Desired.Labels) != 1 {
		t.Errorf("the caller's map is shared: %v", got.Desired.Labels)
	}
}

func TestListIsSortedByCreationThenID(t *testing.T) {
	s := open(t, t.TempDir())
	for i, id := range []string{"c", "a", "d", "b", "e"} {
		m := testMachine(id)
		m.Desired.CreatedAt = epoch.Add(time.Duration(i%2) * time.Second)
		if _, err := s.Create(context.Background(), m); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		var got []string
		for _, m := range s.List() {
			got = append(got, m.ID)
		}
		if d := cmp.Diff([]string{"c", "d", "e", "a", "b"}, got); d != "" {
			t.Fatalf("order differs:\n%s", d)
		}
		s = reopen(t, s)
	}
}

func TestDesiredAndRecordWritersLoseNothing(t *testing.T) {
	ctx := context.Background()
	s := open(t, t.TempDir())
	create(t, s, "a")
	const rounds = 200
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range rounds {
				if _, err := s.UpdateDesired(ctx, "a", 0, func(d *machine.Desired) error { d.Generation++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range rounds {
				if _, err := s.UpdateRecord(ctx, "a", func(r *machine.Record) error { r.Restarts++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for range 2 {
		m, err := s.Get("a")
		if err != nil {
			t.Fatal(err)
		}
		if m.Desired.Generation != 2*rounds || m.Record.Restarts != 2*rounds || m.Version != 1+4*rounds {
			t.Fatalf("lost updates: generation %d, restarts %d, version %d", m.Desired.Generation, m.Record.Restarts, m.Version)
		}
		s = reopen(t, s)
	}
}

func TestOnlyOneDaemonUsesARoot(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	_, err := Open(context.Background(), Options{Dir: dir})
	wantKind(t, err, machine.Unavailable)
	want := fmt.Sprintf("another daemon (pid %d) uses %s", os.Getpid(), dir)
	if err.Error() != want {
		t.Fatalf("got %q, want %q", err, want)
	}
	reopen(t, s)
}

func TestFilesAreForTheirOwnerAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "root")
	open(t, dir)
	for path, want := range map[string]os.FileMode{
		dir: 0o750 | os.ModeDir, filepath.Join(dir, fileName): 0o600, filepath.Join(dir, journalName): 0o600, filepath.Join(dir, lockName): 0o600,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}
}

func TestClosedStoreRefusesWritesAndEndsWatches(t *testing.T) {
	ctx := context.Background()
	s := open(t, t.TempDir())
	w := s.Watch(ctx, WatchOptions{})
	ended := make(chan error, 1)
	go func() {
		_, _, err := w.Next(ctx)
		ended <- err
	}()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wantKind(t, <-ended, machine.Unavailable)
	_, err := s.Create(ctx, testMachine("a"))
	wantKind(t, err, machine.Unavailable)
	_, _, err = s.Watch(ctx, WatchOptions{}).Next(ctx)
	wantKind(t, err, machine.Unavailable)
}

func TestCancelledWriterIsToldSo(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s := open(t, t.TempDir())
	create(t, s, "a")
	inside, leave := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := s.UpdateDesired(ctx, "a", 0, func(d *machine.Desired) error {
			close(inside)
			<-leave
			d.Class = "big"
			return nil
		})
		done <- err
	}()
	<-inside
	queued := make(chan error, 1)
	go func() { queued <- s.Remove(ctx, "a") }()
	cancel()
	for _, err := range []error{<-done, <-queued} {
		wantKind(t, err, machine.Unavailable)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want it to wrap context.Canceled", err)
		}
	}
	close(leave)
	if err := s.WriteProbe(context.Background()); err != nil {
		t.Fatal(err)
	}
	m, err := s.Get("a")
	if err != nil || m.Desired.Class != "big" {
		t.Fatalf("got %v, %v: the write under way should have happened, the one behind it not", m, err)
	}
}
