// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// copyRoot copies the files of a store to another directory.
func copyRoot(from, to string) error {
	if err := os.Mkdir(to, 0o750); err != nil {
		return err
	}
	for _, name := range []string{fileName, journalName} {
		in, err := os.Open(filepath.Join(from, name))
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.Create(filepath.Join(to, name))
		if err != nil {
			return err
		}
		defer out.Close()
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
	return nil
}

// crash returns a copy of the files of a store at rest, as a kill would leave them.
func crash(t *testing.T, s *Store) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "crashed")
	if err := copyRoot(s.dir, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// tryCheckpoint makes a checkpoint on the writer's goroutine.
func tryCheckpoint(s *Store) error {
	_, err := s.do(context.Background(), func(_ *batch, _ *op) (*machine.Machine, error) {
		s.startCheckpoint()
		return nil, s.awaitCheckpoint()
	})
	return err
}

func checkpointNow(t *testing.T, s *Store) {
	t.Helper()
	if err := tryCheckpoint(s); err != nil {
		t.Fatal(err)
	}
}

// quiet is a store that makes checkpoints only when told to.
func quiet(t *testing.T) *Store {
	t.Helper()
	return openWith(t, Options{Dir: t.TempDir(), hooks: hooks{reserve: 256 << 10, checkpointAfter: time.Hour}})
}

func names(machines []*machine.Machine) string {
	var ids []string
	for _, m := range machines {
		ids = append(ids, m.ID)
	}
	return strings.Join(ids, " ")
}

func journalOf(t *testing.T, dir string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, journalName))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// withJournal returns a copy of a crashed root with another journal.
func withJournal(t *testing.T, root string, journal []byte) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	if err := copyRoot(root, dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, journalName), journal, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestATornRecordIsCutAndNothingBeforeIt(t *testing.T) {
	s := quiet(t)
	create(t, s, "a")
	checkpointNow(t, s)
	create(t, s, "b")
	m := testMachine("c")
	m.Desired.Ignition = make([]byte, 9000)
	before := journalOf(t, s.dir)
	from := int(s.journal.tail)
	if _, err := s.Create(context.Background(), m); err != nil {
		t.Fatal(err)
	}
	root, end := crash(t, s), int(s.journal.tail)
	whole := journalOf(t, root)
	const sector = 512
	sectors := (end - from) / sector
	for i := range sectors + 1 {
		first, only := bytes.Clone(before), bytes.Clone(whole)
		copy(first, whole[:from+i*sector]) // a beginning of the record
		if i < sectors {                   // all of it but one sector
			copy(only[from+i*sector:], before[from+i*sector:from+(i+1)*sector])
		}
		for _, journal := range [][]byte{first, only} {
			want := "a b"
			if bytes.Equal(journal, whole) { // what is missing was padding, or nothing
				want = "a b c"
			}
			dir := withJournal(t, root, journal)
			torn := openWith(t, Options{Dir: dir})
			if got := names(torn.List()); got != want {
				t.Fatalf("sector %d of %d: %s, want %s", i, sectors, got, want)
			}
			create(t, torn, "d")
			if got := names(reopen(t, torn).List()); got != want+" d" {
				t.Fatalf("sector %d of %d: then %s, want %s d", i, sectors, got, want)
			}
		}
	}
}

func TestDamageInTheJournalIsNeverTakenForItsEnd(t *testing.T) {
	s := quiet(t)
	create(t, s, "first")
	at := int(s.journal.tail)
	create(t, s, "bad")
	end := int(s.journal.tail)
	create(t, s, "last")
	root := crash(t, s)
	h, err := s.journal.readHead(int64(at))
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	whole := journalOf(t, root)
	values, padding := at+journalHeader+len(h.table), at+int(h.length())
	refused, quarantined := 0, 0
	step := 3
	for i := at; i < end; i += step {
		if i >= values {
			step = 53 // there is more of it, and all the same
		}
		journal := bytes.Clone(whole)
		journal[i] ^= 0x10
		dir := withJournal(t, root, journal)
		damaged, err := Open(context.Background(), Options{Dir: dir})
		if i < values {
			wantKind(t, err, machine.FailedPrecondition)
			if !strings.Contains(err.Error(), journalName+" is damaged and left as it is") {
				t.Fatalf("unclear error: %v", err)
			}
			if !bytes.Equal(journal, journalOf(t, dir)) {
				t.Fatal("the journal was touched")
			}
			refused++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		q := damaged.Quarantined()
		want := "first last"
		if i >= padding {
			want = "bad first last"
		} else if len(q) != 1 || q[0].Key != "bad" {
			t.Fatalf("byte %d: quarantined %v", i, q)
		}
		if got := names(damaged.List()); got != want {
			t.Fatalf("byte %d: %s, want %s", i, got, want)
		}
		quarantined += len(q)
		damaged.Close()
	}
	t.Logf("refused %d, quarantined %d", refused, quarantined)
}

func TestAJournalOfAnotherStateIsRefused(t *testing.T) {
	older := quiet(t)
	create(t, older, "a")
	checkpointNow(t, older)
	old := crash(t, older)
	create(t, older, "b")
	checkpointNow(t, older)
	create(t, older, "c")
	checkpointNow(t, older)
	create(t, older, "d")
	foreign := quiet(t)
	create(t, foreign, "x")
	for name, journal := range map[string][]byte{
		"journal of another store":     journalOf(t, foreign.dir),
		"journal of a much later time": journalOf(t, older.dir),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(context.Background(), Options{Dir: withJournal(t, old, journal)})
			wantKind(t, err, machine.FailedPrecondition)
		})
	}
}

func TestAJournalWithoutItsDatabaseIsNotForgotten(t *testing.T) {
	s := quiet(t)
	create(t, s, "a")
	dir := crash(t, s)
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil {
		t.Fatal(err)
	}
	_, err := Open(context.Background(), Options{Dir: dir})
	wantKind(t, err, machine.FailedPrecondition)

	s.Close() // has brought it into state.db
	if err := os.Remove(filepath.Join(s.dir, fileName)); err != nil {
		t.Fatal(err)
	}
	if got := open(t, s.dir).List(); len(got) != 0 {
		t.Fatal(got)
	}
}

func TestAfterClosingTheDatabaseAloneIsComplete(t *testing.T) {
	s := quiet(t)
	for i := range 30 {
		create(t, s, fmt.Sprintf("m%02d", i))
	}
	want := s.List()
	s.Close()
	if err := os.Remove(filepath.Join(s.dir, journalName)); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s = openWith(t, Options{Dir: s.dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if d := cmp.Diff(want, s.List()); d != "" {
		t.Error(d)
	}
	if !strings.Contains(log.String(), "journal of the store is missing") {
		t.Errorf("nobody is told that the journal is missing: %s", log.String())
	}
}

func TestARecordLargerThanTheJournalMakesItGrow(t *testing.T) {
	s := quiet(t)
	create(t, s, "a")
	m := testMachine("b")
	m.Desired.Ignition = make([]byte, 2<<20)
	if _, err := s.Create(context.Background(), m); err != nil {
		t.Fatal(err)
	}
	create(t, s, "c")
	for _, dir := range []string{crash(t, s), s.dir} {
		if dir == s.dir {
			s.Close()
		}
		if got := names(open(t, dir).List()); got != "a b c" {
			t.Fatal(got)
		}
	}
}

func TestAStoreWithoutAJournalGetsOneAndIsKeptFromOlderVersions(t *testing.T) {
	s := openWith(t, Options{Dir: t.TempDir(), hooks: hooks{schema: 1}})
	create(t, s, "a")
	s.Close()
	if err := os.Remove(filepath.Join(s.dir, journalName)); err != nil {
		t.Fatal(err)
	}
	tamper(t, s.dir, func(tx *bolt.Tx) error { return tx.Bucket([]byte(metaBucket)).Delete([]byte(appliedKey)) })
	s = open(t, s.dir)
	create(t, s, "b")
	s = reopen(t, s)
	if got := names(s.List()); got != "a b" {
		t.Fatal(got)
	}
	if _, err := os.Stat(filepath.Join(s.dir, fileName+".v1.bak")); err != nil {
		t.Error(err)
	}
	s.Close()
	_, err := Open(context.Background(), Options{Dir: s.dir, hooks: hooks{schema: 1}})
	wantKind(t, err, machine.FailedPrecondition)
}

// Somebody went back to the copy that the migration made, ran the older version, and comes again.
func TestRecordsOfATimeThatWasUndoneAreNotReplayed(t *testing.T) {
	s := openWith(t, Options{Dir: t.TempDir(), hooks: hooks{schema: 1}})
	s.Close()
	if err := os.Remove(filepath.Join(s.dir, journalName)); err != nil {
		t.Fatal(err)
	}
	s = openWith(t, Options{Dir: s.dir, hooks: hooks{checkpointAfter: time.Hour}})
	create(t, s, "a")
	dir := crash(t, s)
	if err := os.Rename(filepath.Join(s.dir, fileName+".v1.bak"), filepath.Join(dir, fileName)); err != nil {
		t.Fatal(err)
	}
	_, err := Open(context.Background(), Options{Dir: dir})
	wantKind(t, err, machine.FailedPrecondition)
}

func TestTheDatabaseIsWrittenSoonAndThenLeftAlone(t *testing.T) {
	var commits atomic.Int32
	committed := make(chan struct{}, 100)
	s := openWith(t, Options{Dir: t.TempDir(), hooks: hooks{checkpointAfter: 10 * time.Millisecond, commit: func(tx *bolt.Tx) error {
		defer func() { commits.Add(1); committed <- struct{}{} }()
		return tx.Commit()
	}}})
	create(t, s, "a")
	<-committed
	for range 3 { // trials leave nothing to bring into the database
		if err := s.WriteProbe(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = s.do(context.Background(), func(*batch, *op) (*machine.Machine, error) {
		if s.due != nil {
			t.Error("a timer runs although there is nothing to do")
		}
		return nil, nil
	})
	s.Close()
	if n := commits.Load(); n != 1 {
		t.Errorf("%d commits, want 1", n)
	}
}
