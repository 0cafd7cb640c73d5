// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func TestARingKeepsTheEndOfTheStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := ring{max: rapid.IntRange(1, 20000).Draw(t, "max")}
		var all []byte
		for range rapid.IntRange(1, 20).Draw(t, "appends") {
			n := rapid.IntRange(0, 30000).Draw(t, "bytes")
			p := make([]byte, n)
			for i := range p {
				p[i] = byte((len(all) + i) * 7 % 251)
			}
			r.append(p)
			all = append(all, p...)
			kept := min(len(all), r.max)
			if r.end != int64(len(all)) || r.end-r.start != int64(kept) {
				t.Fatalf("ring holds %d to %d, want the last %d of %d", r.start, r.end, kept, len(all))
			}
			from := rapid.IntRange(0, len(all)).Draw(t, "from")
			dst := make([]byte, rapid.IntRange(0, 20000).Draw(t, "dst"))
			got, lost := r.read(int64(from), dst)
			first := max(from, len(all)-kept)
			if lost != int64(first-from) {
				t.Fatalf("%d lost, want %d", lost, first-from)
			}
			if want := all[first:min(len(all), first+len(dst))]; string(dst[:got]) != string(want) {
				t.Fatalf("read %d bytes from %d that are not the stream's %d", got, from, len(want))
			}
		}
	})
}

func TestLogFilesAreCappedAndKeepWholeLines(t *testing.T) {
	for name, tc := range map[string]struct {
		backups int
		before  string
		writes  []string
		want    []string // console.log, console.log.1, …
	}{
		"what fits stays in one file":             {1, "", []string{"12345\n", "789\n"}, []string{"12345\n789\n"}},
		"a full file is set aside":                {1, "", []string{"12345678\n", "abc\n"}, []string{"abc\n", "12345678\n"}},
		"the oldest goes":                         {1, "", []string{"1234567\n", "abcdefg\n", "xyz\n"}, []string{"xyz\n", "abcdefg\n"}},
		"two backups are kept":                    {2, "", []string{"1234567\n", "abcdefg\n", "xyz\n"}, []string{"xyz\n", "abcdefg\n", "1234567\n"}},
		"without backups the full file goes":      {0, "", []string{"1234567\n", "abc\n"}, []string{"abc\n"}},
		"one write is split between lines":        {1, "", []string{"1234\nabcdefg\n"}, []string{"abcdefg\n", "1234\n"}},
		"a line longer than a file is cut":        {3, "", []string{"0123456789abcdefghijXY"}, []string{"XY", "abcdefghij", "0123456789"}},
		"it goes on behind what is there":         {1, "12\n", []string{"34\n"}, []string{"12\n34\n"}},
		"a file of before that is full goes, too": {1, "0123456789abc", []string{"x\n"}, []string{"x\n", "0123456789abc"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "console.log")
			if tc.before != "" {
				os.WriteFile(path, []byte(tc.before), 0o600)
			}
			l := logFile{path: path, max: 10, backups: tc.backups, open: openSink}
			for _, w := range tc.writes {
				if n, err := l.write([]byte(w)); err != nil || n != len(w) {
					t.Fatal(n, err)
				}
			}
			l.close()
			var got []string
			for i := range 9 {
				if text := content(l.backup(i)); text != "" {
					got = append(got, text)
				}
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
			if info, err := os.Stat(path); err != nil || tc.before == "" && info.Mode().Perm() != 0o640 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
		})
	}
}

func TestRequestLines(t *testing.T) {
	for line, want := range map[string]struct {
		id  string
		o   AttachOptions
		bad bool
	}{
		"ATTACH a":             {id: "a"},
		"ATTACH a\r":           {id: "a"},
		"ATTACH a ro":          {id: "a", o: AttachOptions{ReadOnly: true}},
		"ATTACH a takeover":    {id: "a", o: AttachOptions{TakeOver: true}},
		"ATTACH a ro takeover": {id: "a", o: AttachOptions{ReadOnly: true, TakeOver: true}},
		"":                     {bad: true},
		"ATTACH":               {bad: true},
		"ATTACH ":              {bad: true},
		"attach a":             {bad: true},
		"ATTACH  a":            {bad: true},
		"ATTACH a ":            {bad: true},
		"ATTACH a rw":          {bad: true},
		"ATTACH a ro ro":       {bad: true},
		"ATTACH \x00":          {bad: true},
		"ATTACH ü":             {bad: true},
		"GET / HTTP/1.1":       {bad: true},
	} {
		t.Run(line, func(t *testing.T) {
			id, o, err := parseRequest(line)
			if want.bad {
				wantKind(t, err, machine.Invalid)
				return
			}
			if err != nil || id != want.id || o != want.o {
				t.Errorf("%q %+v %v", id, o, err)
			}
			sent, err := formatRequest(id, o)
			if err != nil || sent != strings.TrimSuffix(line, "\r")+"\n" {
				t.Errorf("formatted %q %v", sent, err)
			}
		})
	}
}

func TestARequestThatWouldBreakTheLineIsNotSent(t *testing.T) {
	for _, id := range []string{"", "a b", "a\nATTACH b", "ü", strings.Repeat("x", 300)} {
		if line, err := formatRequest(id, AttachOptions{}); err == nil {
			t.Errorf("%q becomes %q", id, line)
		}
	}
}

func TestErrorsKeepKindAndTextOverTheSocket(t *testing.T) {
	for _, err := range []error{
		machine.Errorf(machine.NotFound, "no: such machine"), machine.Errorf(machine.FailedPrecondition, "two\nlines"),
		machine.Errorf(machine.Exhausted, "%s", strings.Repeat("x", 5000)),
	} {
		line, errRead := readLine(bufio.NewReader(strings.NewReader(formatError(err))), maxAnswer)
		if errRead != nil {
			t.Fatal(errRead)
		}
		got := parseAnswer(line)
		if machine.KindOf(got) != machine.KindOf(err) || !strings.HasPrefix(strings.ReplaceAll(err.Error(), "\n", " "), got.Error()) {
			t.Errorf("%v became %v", err, got)
		}
	}
	wantKind(t, parseAnswer("HTTP/1.1 400"), machine.Unavailable)
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{{LogMaxBytes: -1}, {Backups: -1}, {RingBytes: 100}} {
		_, err := New(o)
		wantKind(t, err, machine.Invalid)
	}
}
