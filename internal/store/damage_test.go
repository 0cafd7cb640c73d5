// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// tamper changes the closed file below the store.
func tamper(t *testing.T, dir string, fn func(tx *bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(filepath.Join(dir, fileName), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(fn), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// keyOf finds the key of a machine in a bucket.
func keyOf(b *bolt.Bucket, id string) []byte {
	c := b.Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		if strings.HasSuffix(string(k), id) {
			return bytes.Clone(k)
		}
	}
	return []byte("none")
}

func half(tx *bolt.Tx, bucket, id string) []byte {
	b := tx.Bucket([]byte(bucket))
	return bytes.Clone(b.Get(keyOf(b, id)))
}

func drop(bucket, id string) func(*bolt.Tx) error {
	return func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		return b.Delete(keyOf(b, id))
	}
}

func TestDamagedMachinesAreQuarantinedAndTheRestRuns(t *testing.T) {
	ctx := context.Background()
	put := func(bucket string, value func(old []byte) []byte) func(*bolt.Tx) error {
		return func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			key := keyOf(b, "bad")
			return b.Put(key, value(bytes.Clone(b.Get(key))))
		}
	}
	tests := []struct {
		name, reason string
		damage       func(tx *bolt.Tx) error
	}{
		{"one bit of desired flipped", "desired: wrong checksum", put(desiredBucket, func(v []byte) []byte { v[len(v)/2] ^= 1; return v })},
		{"version of record flipped", "record: wrong checksum", put(recordBucket, func(v []byte) []byte { v[3] ^= 1; return v })},
		{"record emptied", "record: cut off after 0 bytes", put(recordBucket, func([]byte) []byte { return nil })},
		{"format unknown", "desired: unknown format 9", put(desiredBucket, func(v []byte) []byte { v[0] = 9; return v })},
		{"JSON cut off", "desired: unexpected end of JSON input", put(desiredBucket, func(v []byte) []byte {
			v = v[:len(v)-5]
			binary.BigEndian.PutUint32(v[9:], checksum(desiredBucket, "bad", v))
			return v
		})},
		{"value of another machine", "desired: wrong checksum", func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(desiredBucket))
			return b.Put(keyOf(b, "bad"), bytes.Clone(b.Get(keyOf(b, "good"))))
		}},
		{"record missing", "desired half without record", drop(recordBucket, "bad")},
		{"key cut off", "key is cut off", func(tx *bolt.Tx) error {
			for _, name := range []string{desiredBucket, recordBucket} {
				value := half(tx, name, "bad")
				if err := errors.Join(drop(name, "bad")(tx), tx.Bucket([]byte(name)).Put([]byte("bad"), value)); err != nil {
					return err
				}
			}
			return nil
		}},
		{"desired missing", "record half without desired", drop(desiredBucket, "bad")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t, t.TempDir())
			create(t, s, "bad")
			create(t, s, "good")
			s.Close()
			var desired, record []byte
			tamper(t, s.dir, func(tx *bolt.Tx) error {
				err := tt.damage(tx)
				desired = half(tx, desiredBucket, "bad")
				record = half(tx, recordBucket, "bad")
				return err
			})
			for range 2 { // found, then remembered
				s = openWith(t, Options{Dir: s.dir})
				q := s.Quarantined()
				if len(q) != 1 || q[0].Key != "bad" || q[0].Reason != tt.reason || q[0].At.IsZero() {
					t.Fatalf("quarantined: %+v, want reason %q", q, tt.reason)
				}
				if list := s.List(); len(list) != 1 || list[0].ID != "good" {
					t.Fatalf("list: %v", list)
				}
				_, err := s.Create(ctx, testMachine("bad"))
				wantKind(t, err, machine.AlreadyExists)
				if _, err := s.UpdateRecord(ctx, "good", func(r *machine.Record) error { r.Restarts++; return nil }); err != nil {
					t.Fatal(err)
				}
				s.Close()
			}
			tamper(t, s.dir, func(tx *bolt.Tx) error {
				var e quarantineEntry
				if _, err := decode(quarantineBucket, "bad", tx.Bucket([]byte(quarantineBucket)).Get([]byte("bad")), &e); err != nil {
					return err
				}
				if !bytes.Equal(e.Desired, desired) || !bytes.Equal(e.Record, record) {
					t.Error("the damaged halves were not kept as they were")
				}
				return nil
			})
		})
	}
}

func TestFileDamagedAsAWholeIsRefusedAndUntouched(t *testing.T) {
	s := open(t, t.TempDir())
	for i := range 50 {
		create(t, s, string(rune('a'+i)))
	}
	s.Close()
	path := filepath.Join(s.dir, fileName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]func([]byte) []byte{
		"both meta pages zeroed": func(d []byte) []byte { clear(d[:2*os.Getpagesize()]); return d },
		"not a database":         func([]byte) []byte { return []byte(strings.Repeat("hello\n", 3000)) },
		"a few bytes":            func(d []byte) []byte { return d[:100] },
		"cut off":                func(d []byte) []byte { return d[:6*os.Getpagesize()] },
		"empty":                  func([]byte) []byte { return nil },
		"pages overwritten": func(d []byte) []byte {
			for i := 2 * os.Getpagesize(); i < len(d); i++ {
				d[i] = 0xa5
			}
			return d
		},
	}
	for name, damage := range tests {
		t.Run(name, func(t *testing.T) {
			damaged := damage(bytes.Clone(whole))
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(context.Background(), Options{Dir: s.dir})
			wantKind(t, err, machine.FailedPrecondition)
			if !strings.Contains(err.Error(), path+" is damaged as a whole") {
				t.Errorf("unclear error: %v", err)
			}
			after, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(after, damaged) {
				t.Errorf("the file was touched (%v)", err)
			}
		})
	}
}

func TestRandomDamageNeverMakesOpeningPanic(t *testing.T) {
	s := open(t, t.TempDir())
	for i := range 40 {
		create(t, s, string(rune('a'+i)))
	}
	checkpointNow(t, s)
	var used int64
	if err := s.db.View(func(tx *bolt.Tx) error { used = tx.Size(); return nil }); err != nil {
		t.Fatal(err)
	}
	s.Close()
	path := filepath.Join(s.dir, fileName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole = whole[:used]
	refused, quarantined := 0, 0
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		data := bytes.Clone(whole)
		for range 1 + random.IntN(5) {
			at := random.IntN(len(data))
			if random.IntN(2) == 0 { // heads of pages, where the structure is
				at = at&^(os.Getpagesize()-1) + random.IntN(128)
			}
			data[at] = byte(random.Uint32())
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(context.Background(), Options{Dir: s.dir})
		if err != nil {
			wantKind(t, err, machine.FailedPrecondition)
			refused++
			continue
		}
		for _, m := range s.List() {
			if m.Version != 1 || m.Desired.Class != "small" {
				t.Fatalf("damage went unnoticed: %v", m)
			}
		}
		quarantined += len(s.Quarantined())
		s.Close()
	}
	t.Logf("refused %d, quarantined %d", refused, quarantined)
}

// migrateFromZero reads an invented schema 0: one bucket of plain JSON, no schema number.
func migrateFromZero(tx *bolt.Tx) error {
	if err := initialise(tx, 1); err != nil {
		return err
	}
	err := tx.Bucket([]byte("machines")).ForEach(func(k, v []byte) error {
		var d machine.Desired
		if err := json.Unmarshal(v, &d); err != nil {
			return err
		}
		for bucket, half := range map[string]any{desiredBucket: &d, recordBucket: &machine.Record{}} {
			value, err := encode(bucket, string(k), 1, half)
			if err != nil {
				return err
			}
			if err := tx.Bucket([]byte(bucket)).Put(makeKey(1, string(k)), value); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return tx.DeleteBucket([]byte("machines"))
}

func schemaZero(t *testing.T) (dir string, file []byte) {
	t.Helper()
	dir = t.TempDir()
	tamper(t, dir, func(tx *bolt.Tx) error {
		b, err := tx.CreateBucket([]byte("machines"))
		if err != nil {
			return err
		}
		for _, id := range []string{"a", "b"} {
			value, err := json.Marshal(testMachine(id).Desired)
			if err != nil {
				return err
			}
			if err := b.Put([]byte(id), value); err != nil {
				return err
			}
		}
		return nil
	})
	file, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	return dir, file
}

func TestOlderSchemaIsMigratedAfterACopy(t *testing.T) {
	dir, _ := schemaZero(t)
	h := hooks{migrations: map[uint64]migration{0: migrateFromZero, 1: migrations()[1]}}
	s := openWith(t, Options{Dir: dir, hooks: h})
	if len(s.List()) != 2 || s.ID() == "" {
		t.Fatalf("after migration: id %q, machines %v", s.ID(), s.List())
	}
	m, err := s.Get("a")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(testMachine("a").Desired, m.Desired); d != "" {
		t.Error(d)
	}
	id := s.ID()
	if s = reopen(t, s); s.ID() != id {
		t.Error("the identity changed")
	}
	s.Close()
	backup := filepath.Join(dir, "state.db.v0.bak")
	info, err := os.Stat(backup)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("copy: %v, %v", info, err)
	}
	// The copy is a file of the old schema: the same migration takes it.
	if err := os.Rename(backup, filepath.Join(dir, fileName)); err != nil {
		t.Fatal(err)
	}
	if s = openWith(t, Options{Dir: dir, hooks: h}); len(s.List()) != 2 {
		t.Error("the copy does not hold the machines")
	}
}

func TestFailedMigrationLeavesTheFileAsItWas(t *testing.T) {
	dir, before := schemaZero(t)
	_, err := Open(context.Background(), Options{Dir: dir, hooks: hooks{migrations: map[uint64]migration{0: func(tx *bolt.Tx) error {
		return errors.Join(migrateFromZero(tx), errors.New("boom"))
	}, 1: migrations()[1]}}})
	if err == nil || !strings.Contains(err.Error(), "boom") {
		t.Fatalf("got %v", err)
	}
	after, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil || !bytes.Equal(before, after) {
		t.Fatalf("the file changed (%v)", err)
	}
}

func TestSchemaThatCannotBeReadIsRefused(t *testing.T) {
	dir, before := schemaZero(t)
	_, err := Open(context.Background(), Options{Dir: dir})
	wantKind(t, err, machine.FailedPrecondition)
	after, rerr := os.ReadFile(filepath.Join(dir, fileName))
	if rerr != nil || !bytes.Equal(before, after) || !strings.Contains(err.Error(), "schema 0") {
		t.Fatalf("%v; file changed: %v", err, !bytes.Equal(before, after))
	}

	s := open(t, t.TempDir())
	s.Close()
	tamper(t, s.dir, func(tx *bolt.Tx) error { return initialise(tx, 7) })
	_, err = Open(context.Background(), Options{Dir: s.dir})
	wantKind(t, err, machine.FailedPrecondition)
	if !strings.Contains(err.Error(), "schema 7, written by a newer version; this one knows up to 2") {
		t.Errorf("unclear error: %v", err)
	}
}
