// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// fillUp creates machines until the disk is full, and returns how many fitted.
func fillUp(t *testing.T, s *Store) int {
	t.Helper()
	for n := range 100_000 {
		m := testMachine(fmt.Sprintf("m%05d", n))
		m.Desired.Ignition = make([]byte, 8<<10)
		if _, err := s.Create(context.Background(), m); err != nil {
			wantKind(t, err, machine.Exhausted)
			return n
		}
	}
	t.Fatal("the disk never got full")
	return 0
}

// checkFull checks what holds on a full disk, then makes room and checks that all is well again.
func checkFull(t *testing.T, s *Store, makeRoom func()) {
	t.Helper()
	ctx := context.Background()
	before := s.List()
	wantKind(t, s.Healthy(), machine.Exhausted)
	// What is too little for a big machine may do for a small write.
	if err := s.WriteProbe(ctx); machine.KindOf(err) != machine.KindOf(s.Healthy()) {
		t.Fatalf("probe %v, healthy %v", err, s.Healthy())
	}
	_, err := s.UpdateDesired(ctx, before[0].ID, 0, func(d *machine.Desired) error { d.Ignition = make([]byte, 64<<10); return nil })
	wantKind(t, err, machine.Exhausted)
	wantKind(t, s.Healthy(), machine.Exhausted)
	if !reflect.DeepEqual(before, s.List()) {
		t.Fatalf("a refused write changed something:\n%s", cmp.Diff(before, s.List()))
	}

	// A deletion is recorded step by step all the same, for every machine.
	for i, m := range before {
		if _, err := s.UpdateDesired(ctx, m.ID, 0, func(d *machine.Desired) error { now := epoch; d.DeletedAt = &now; return nil }); err != nil {
			t.Fatalf("mark machine %d of %d as deleted on a full disk: %v", i, len(before), err)
		}
	}
	for _, m := range before {
		if _, err := s.UpdateRecord(ctx, m.ID, func(r *machine.Record) error {
			r.Shutdown = &machine.ShutdownRecord{StartedAt: epoch, Deadline: epoch}
			return nil
		}); err != nil {
			t.Fatalf("record progress of a deletion on a full disk: %v", err)
		}
	}
	if err := s.Remove(ctx, before[0].ID); err != nil {
		t.Fatalf("remove a machine on a full disk: %v", err)
	}
	s = reopen(t, s)
	if len(s.List()) != len(before)-1 || len(s.Quarantined()) > 0 {
		t.Fatalf("%d machines after reopening, want %d; quarantined: %v", len(s.List()), len(before)-1, s.Quarantined())
	}
	for _, m := range s.List() {
		if !m.Desired.Deleting() || m.Record.Shutdown == nil {
			t.Fatalf("machine %s lost its deletion", m.ID)
		}
	}

	makeRoom()
	for i := range 50 {
		create(t, s, fmt.Sprintf("after%d", i))
	}
	if err := s.Healthy(); err != nil {
		t.Fatalf("still unhealthy after a success: %v", err)
	}
	if n := len(reopen(t, s).List()); n != len(before)-1+50 {
		t.Fatalf("%d machines in the end, want %d", n, len(before)-1+50)
	}
}

func TestFullDiskSimulated(t *testing.T) {
	var free atomic.Int64
	free.Store(2 << 20)
	h := hooks{reserve: 256 << 10, allocate: func(f *os.File, size int64) error {
		if size > free.Load() {
			return syscall.ENOSPC
		}
		return allocate(f, size)
	}}
	s := openWith(t, Options{Dir: t.TempDir(), hooks: h})
	if n := fillUp(t, s); n < 20 {
		t.Fatalf("only %d machines fitted", n)
	}
	checkFull(t, s, func() { free.Store(64 << 20) })
}

func TestFailedWriteChangesNothing(t *testing.T) {
	ctx := context.Background()
	var fail atomic.Pointer[error]
	h := hooks{sync: func(f *os.File) error {
		if err := fail.Load(); err != nil {
			return *err
		}
		return syncData(f)
	}}
	s := openWith(t, Options{Dir: t.TempDir(), hooks: h})
	before := create(t, s, "a")
	for cause, kind := range map[error]machine.Kind{
		syscall.ENOSPC: machine.Exhausted, syscall.EDQUOT: machine.Exhausted, syscall.EIO: machine.Unavailable,
	} {
		wrapped := fmt.Errorf("fdatasync: %w", cause)
		fail.Store(&wrapped)
		_, err := s.UpdateDesired(ctx, "a", 0, func(d *machine.Desired) error { d.Class = "big"; return nil })
		wantKind(t, err, kind)
		_, err = s.Create(ctx, testMachine("b"))
		wantKind(t, err, kind)
		wantKind(t, s.Remove(ctx, "a"), kind)
		wantKind(t, s.WriteProbe(ctx), kind)
		wantKind(t, s.Healthy(), kind)
		if got := s.List(); len(got) != 1 || got[0] != before {
			t.Fatalf("%v: list changed: %v", cause, got)
		}
		fail.Store(nil)
		if err := s.WriteProbe(ctx); err != nil || s.Healthy() != nil {
			t.Fatalf("after %v: probe %v, healthy %v", cause, err, s.Healthy())
		}
	}
	if got := reopen(t, s).List(); len(got) != 1 || got[0].Desired.Class != "small" {
		t.Fatalf("after reopening: %v", got)
	}
}

// When a sync fails nobody knows what a crash would leave, and syncing again would not tell: what was written must
// not be built upon, and must be gone for good once a later write was acknowledged.
func TestAWriteWhoseSyncFailedIsNeverTakenForDurable(t *testing.T) {
	ctx := context.Background()
	for name, later := range map[string]func(*testing.T, *Store){
		"crash right after it": func(*testing.T, *Store) {},
		"one more write":       func(t *testing.T, s *Store) { create(t, s, "b") },
		"a bigger write": func(t *testing.T, s *Store) {
			m := testMachine("b")
			m.Desired.Ignition = make([]byte, 20<<10)
			if _, err := s.Create(ctx, m); err != nil {
				t.Fatal(err)
			}
		},
		"a write elsewhere": func(t *testing.T, s *Store) {
			checkpointNow(t, s) // the journal begins anew
			create(t, s, "b")
		},
	} {
		t.Run(name, func(t *testing.T) {
			var fail atomic.Bool
			s := openWith(t, Options{Dir: t.TempDir(), hooks: hooks{checkpointAfter: time.Hour, sync: func(f *os.File) error {
				err := syncData(f)
				if fail.Load() {
					return errors.Join(err, syscall.EIO)
				}
				return err
			}}})
			create(t, s, "a")
			w := s.Watch(ctx, WatchOptions{})
			defer w.Close()
			fail.Store(true)
			_, err := s.UpdateDesired(ctx, "a", 0, func(d *machine.Desired) error { d.Class = "big"; return nil })
			wantKind(t, err, machine.Unavailable)
			if m, _ := s.Get("a"); m.Desired.Class != "small" || len(w.queue) > 0 {
				t.Fatal("an unacknowledged write is visible")
			}
			fail.Store(false)
			later(t, s)
			memory := s.List()
			disk := openWith(t, Options{Dir: crash(t, s)}).List()
			if len(memory) == 1 { // the failed write may have happened
				memory[0].Desired.Class, memory[0].Version = disk[0].Desired.Class, disk[0].Version
			}
			if d := cmp.Diff(memory, disk); d != "" {
				t.Fatalf("memory and disk went apart:\n%s", d)
			}
			if len(memory) == 2 {
				if d := cmp.Diff(memory, reopen(t, s).List()); d != "" {
					t.Fatalf("memory and disk went apart after a clean end:\n%s", d)
				}
			}
		})
	}
}

func TestADatabaseThatCannotBeWrittenHoldsUpNoWriteUntilTheJournalIsFull(t *testing.T) {
	ctx := context.Background()
	var fail atomic.Bool
	fail.Store(true)
	s := openWith(t, Options{Dir: t.TempDir(), hooks: hooks{
		reserve: 64 << 10, checkpointAfter: time.Millisecond,
		commit: func(tx *bolt.Tx) error {
			if fail.Load() {
				return syscall.EIO
			}
			return tx.Commit()
		},
	}})
	n := 0
	for ; ; n++ {
		if _, err := s.Create(ctx, testMachine(fmt.Sprint("m", n))); err != nil {
			wantKind(t, err, machine.Unavailable)
			break
		}
	}
	if want := 2 * 64 / 4; n < want/2 || n > want {
		t.Errorf("%d writes were taken, want about %d", n, want)
	}
	wantKind(t, s.Healthy(), machine.Unavailable)
	if got := openWith(t, Options{Dir: crash(t, s)}).List(); len(got) != n {
		t.Errorf("%d machines after a crash, want %d", len(got), n)
	}
	fail.Store(false)
	create(t, s, "last")
	if err := s.Healthy(); err != nil {
		t.Errorf("still unhealthy: %v", err)
	}
	if got := reopen(t, s).List(); len(got) != n+1 {
		t.Errorf("%d machines in the end, want %d", len(got), n+1)
	}
}

func TestPanicOfTheDatabaseEndsWritingButNotReading(t *testing.T) {
	ctx := context.Background()
	var fail atomic.Bool
	h := hooks{commit: func(tx *bolt.Tx) error {
		if fail.Load() {
			panic("page 7 already freed")
		}
		return tx.Commit()
	}}
	h.checkpointAfter = time.Hour
	s := openWith(t, Options{Dir: t.TempDir(), hooks: h})
	create(t, s, "a")
	fail.Store(true)
	if err := tryCheckpoint(s); !machine.IsKind(err, machine.Unavailable) {
		t.Fatalf("got %v", err)
	}
	fail.Store(false)
	_, err := s.Create(ctx, testMachine("b"))
	wantKind(t, err, machine.Unavailable)
	wantKind(t, s.Healthy(), machine.Unavailable)
	if len(s.List()) != 1 {
		t.Fatal("reading ended, too")
	}
	if s = reopen(t, s); len(s.List()) != 1 {
		t.Fatal("the machine is lost")
	}
}

func TestOneFailingFunctionDoesNotFailTheOthers(t *testing.T) {
	s := open(t, t.TempDir())
	create(t, s, "a")
	errs := make(chan error, 60)
	for i := range 20 {
		go func() {
			_, err := s.UpdateDesired(context.Background(), "a", 0, func(*machine.Desired) error { return errors.New("no") })
			if err == nil {
				errs <- errors.New("a failed function was taken for success")
				return
			}
			errs <- nil
		}()
		go func() {
			m := testMachine(fmt.Sprint("bad", i))
			m.Desired.CreatedAt = epoch.AddDate(20000, 0, 0) // JSON has no such year
			_, err := s.Create(context.Background(), m)
			if !machine.IsKind(err, machine.Invalid) {
				errs <- fmt.Errorf("unencodable machine: %w", err)
				return
			}
			errs <- nil
		}()
		go func() {
			_, err := s.Create(context.Background(), testMachine(fmt.Sprint("good", i)))
			errs <- err
		}()
	}
	for range 60 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := len(s.List()); n != 21 {
		t.Errorf("%d machines, want 21", n)
	}
}

func TestOpeningOnAFullDiskWorks(t *testing.T) {
	full := hooks{allocate: func(*os.File, int64) error { return syscall.ENOSPC }}
	_, err := Open(context.Background(), Options{Dir: t.TempDir(), hooks: full})
	wantKind(t, err, machine.Exhausted)

	s := open(t, t.TempDir())
	create(t, s, "a")
	create(t, s, "b")
	s.Close()
	tamper(t, s.dir, drop(recordBucket, "b"))
	s = openWith(t, Options{Dir: s.dir, hooks: full})
	if _, err := s.Get("a"); err != nil {
		t.Fatal(err)
	}
	if len(s.Quarantined()) != 1 {
		t.Fatalf("quarantined: %v", s.Quarantined())
	}
	if _, err := os.Stat(filepath.Join(s.dir, fileName+".new")); err == nil {
		t.Error("a temporary file is left")
	}
}

func TestWhatDoesNotFitIntoTheDatabaseStaysInTheJournal(t *testing.T) {
	first := openWith(t, Options{Dir: t.TempDir(), hooks: hooks{checkpointAfter: time.Hour}})
	for i := range 9 {
		create(t, first, fmt.Sprint("m", i))
	}
	checkpointNow(t, first)
	if err := first.Remove(context.Background(), "m8"); err != nil {
		t.Fatal(err)
	}
	if _, err := first.UpdateRecord(context.Background(), "m1", func(r *machine.Record) error { r.Restarts = 3; return nil }); err != nil {
		t.Fatal(err)
	}
	create(t, first, "n")
	want, dir := first.List(), crash(t, first)
	full := hooks{
		allocate: func(*os.File, int64) error { return syscall.ENOSPC },
		commit:   func(tx *bolt.Tx) error { return errors.Join(syscall.ENOSPC, tx.Rollback()) },
	}
	for range 3 {
		s := openWith(t, Options{Dir: dir, hooks: full})
		if d := cmp.Diff(want, s.List()); d != "" {
			t.Fatalf("what the journal alone has is not seen:\n%s", d)
		}
		wantKind(t, s.Healthy(), machine.Exhausted)
		id := want[0].ID
		if err := s.Remove(context.Background(), id); err != nil {
			t.Fatalf("remove on a full disk: %v", err)
		}
		want = want[1:]
		s.Close()
	}
	s := openWith(t, Options{Dir: dir})
	if d := cmp.Diff(want, s.List()); d != "" {
		t.Fatalf("in the end:\n%s", d)
	}
	if err := s.Healthy(); err != nil {
		t.Error(err)
	}
}
