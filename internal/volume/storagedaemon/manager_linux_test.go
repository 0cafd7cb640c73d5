// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package storagedaemon

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

func TestADaemonWhoseIdentityWasNotRecordedIsFoundByItsMark(t *testing.T) {
	r := newRig(t)
	e := r.export("m1", "data")
	first := r.life()
	r.serve(first, e)
	pid := r.pid(first, e.Ref)
	first.stop()
	// As a kill between spawn and record leaves it.
	rec, err := loadRecord(e.Dir)
	if err != nil {
		t.Fatal(err)
	}
	rec.Process = nil
	if err := saveRecord(e.Dir, rec); err != nil {
		t.Fatal(err)
	}
	second := r.life()
	r.serve(second, e)
	if now := r.pid(second, e.Ref); now != pid {
		t.Errorf("daemon %d was not found, %d serves", pid, now)
	}
	if err := second.Stop(t.Context(), e.Ref, e.Dir); err != nil {
		t.Fatal(err)
	}
	r.nothing(second, e)
}

func TestAnIntentThatCameToNothingIsNoObstacle(t *testing.T) {
	r := newRig(t)
	e, l := r.export("m1", "data"), r.life()
	if err := os.MkdirAll(e.Dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := saveRecord(e.Dir, record{Marker: l.prefix(e.Ref) + "0", Identity: e.Identity}); err != nil {
		t.Fatal(err)
	}
	r.serve(l, e)
	if err := l.Stop(t.Context(), e.Ref, e.Dir); err != nil {
		t.Fatal(err)
	}
	r.nothing(l, e)
}

func TestAnotherProcessIsNeverTakenForADaemon(t *testing.T) {
	r := newRig(t)
	e, l := r.export("m1", "data"), r.life()
	other, err := l.supervisor.Start(t.Context(), process.Spec{Name: "bystander", Marker: r.id() + "/bystander/1", Argv: []string{"sleep", "600"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(other.Identity().PID, syscall.SIGKILL) })
	forged := other.Identity()
	forged.Marker = l.prefix(e.Ref) + "0"
	if err := os.MkdirAll(e.Dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := saveRecord(e.Dir, record{Marker: forged.Marker, Process: &forged, Identity: e.Identity}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Serve(t.Context(), e); err == nil {
		t.Error("served by a bystander")
	}
	if err := l.Stop(t.Context(), e.Ref, e.Dir); err == nil {
		t.Error("a bystander was ended")
	}
	if ended(other) {
		t.Error("the bystander is gone")
	}
}

func TestADaemonThatServesSomethingElseIsLeftAlone(t *testing.T) {
	r := newRig(t)
	e := r.export("m1", "data")
	for _, sameLife := range []bool{true, false} {
		l := r.life()
		r.serve(l, e)
		pid := r.pid(l, e.Ref)
		asking := l
		if !sameLife {
			l.stop()
			asking = r.life()
		}
		changed := e
		changed.Identity = "another"
		if _, err := asking.Serve(t.Context(), changed); !machine.IsKind(err, machine.FailedPrecondition) {
			t.Errorf("same life %t: %v", sameLife, err)
		}
		if now := r.pid(asking, e.Ref); now != pid {
			t.Errorf("same life %t: daemon %d became %d", sameLife, pid, now)
		}
		if err := asking.Stop(t.Context(), e.Ref, e.Dir); err != nil {
			t.Fatal(err)
		}
		r.serve(asking, changed)
		if err := asking.Stop(t.Context(), e.Ref, e.Dir); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTwoMachinesVolumesOfOneNameStayApart(t *testing.T) {
	r := newRig(t)
	l := r.life()
	one, two := r.export("m1", "root"), r.export("m2", "root")
	a, b := r.serve(l, one), r.serve(l, two)
	if a.Socket == b.Socket || r.pid(l, one.Ref) == r.pid(l, two.Ref) {
		t.Errorf("%+v and %+v are served by one", a, b)
	}
	held, err := l.Held(t.Context())
	if err != nil || len(held) != 2 || !slices.Contains(held, one.Ref) || !slices.Contains(held, two.Ref) {
		t.Errorf("Held = %v, %v", held, err)
	}
	for range 2 { // the second finds nothing, and says so
		if err := l.Stop(t.Context(), one.Ref, one.Dir); err != nil {
			t.Fatal(err)
		}
	}
	r.nothing(l, one)
	if again := r.serve(l, two); again != b {
		t.Errorf("the other one changed: %+v", again)
	}
	if err := l.Stop(t.Context(), two.Ref, two.Dir); err != nil {
		t.Fatal(err)
	}
	r.nothing(l, two)
}

func TestADaemonThatHangsHoldsUpNobodyElseAndIsKilledAtItsStop(t *testing.T) {
	r := newRig(t)
	l := r.life()
	hung, other := r.export("m1", "data"), r.export("m2", "data")
	r.serve(l, hung)
	if err := syscall.Kill(r.pid(l, hung.Ref), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stuck := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _, err := l.Serve(ctx, hung); stuck <- err }()
	start := time.Now()
	r.serve(l, other)
	if err := l.Stop(t.Context(), other.Ref, other.Dir); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("another volume took %s", took)
	}
	select {
	case err := <-stuck:
		t.Errorf("a daemon that hangs answered: %v", err)
	default:
	}
	cancel()
	if err := <-stuck; err == nil {
		t.Error("a daemon that hangs answered")
	}
	if err := l.Stop(t.Context(), hung.Ref, hung.Dir); err != nil {
		t.Fatal(err)
	}
	r.nothing(l, hung)
}

func TestADaemonThatIsKilledIsFollowedByOneOnTheSameSocket(t *testing.T) {
	r := newRig(t)
	l, e := r.life(), r.export("m1", "data")
	before := r.serve(l, e)
	for range 3 {
		pid := r.pid(l, e.Ref)
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		r.until("another daemon", func() bool { p := r.pids(l, e.Ref); return len(p) == 1 && p[0] != pid })
		r.until("it serves", func() bool { h := l.heard(); return len(h) > 1 && h[len(h)-1] == "" })
	}
	if !contains(l.heard(), "SIGKILL") {
		t.Errorf("told: %q", l.heard())
	}
	if now := r.serve(l, e); now != before {
		t.Errorf("%+v became %+v", before, now)
	}
	if err := l.Stop(t.Context(), e.Ref, e.Dir); err != nil {
		t.Fatal(err)
	}
	r.nothing(l, e)
}

func TestWhyADaemonCannotBeStartedAgainIsToldAndTriedAgain(t *testing.T) {
	r := newRig(t)
	l, e := r.life(), r.export("m1", "data")
	r.serve(l, e)
	file := e.Node["filename"].(string)
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(r.pid(l, e.Ref), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.until("the reason is told", func() bool { return contains(l.heard(), "No such file") })
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatal(err)
	}
	r.until("it serves", func() bool { h := l.heard(); return h[len(h)-1] == "" })
	if err := l.Stop(t.Context(), e.Ref, e.Dir); err != nil {
		t.Fatal(err)
	}
	r.nothing(l, e)
}

func TestAHostThatRebootedServesAgain(t *testing.T) {
	r := newRig(t)
	l, e := r.life(), r.export("m1", "data")
	before := r.serve(l, e)
	pid := r.pid(l, e.Ref)
	l.stop()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(r.runtime); err != nil {
		t.Fatal(err)
	}
	next := r.life()
	r.until("the old one is gone", func() bool { return len(r.pids(next, e.Ref)) == 0 })
	r.until("it serves", func() bool { _, err := next.Serve(t.Context(), e); return err == nil }) // one that dies cannot be asked for a moment
	if now := r.serve(next, e); now != before {
		t.Errorf("%+v became %+v", before, now)
	}
	if err := next.Stop(t.Context(), e.Ref, e.Dir); err != nil {
		t.Fatal(err)
	}
	r.nothing(next, e)
}

func TestAMediumGrowsAndNeverShrinks(t *testing.T) {
	r := newRig(t)
	l, e := r.life(), r.export("m1", "data")
	e.Limits = volume.Limits{TotalOps: 1000, ReadBytes: 1 << 20}
	if got := r.serve(l, e); got.SizeBytes != size {
		t.Errorf("%+v", got)
	}
	for _, step := range []struct{ ask, want int64 }{{2 * size, 2 * size}, {2 * size, 2 * size}, {size, 2 * size}} {
		if err := l.Resize(t.Context(), e.Ref, step.ask); err != nil {
			t.Fatal(err)
		}
		if got := r.serve(l, e); got.SizeBytes != step.want {
			t.Errorf("asked for %d: %+v", step.ask, got)
		}
	}
	if info, err := os.Stat(e.Node["filename"].(string)); err != nil || info.Size() != 2*size {
		t.Errorf("%v, %v", info, err)
	}
	if err := l.Stop(t.Context(), e.Ref, e.Dir); err != nil {
		t.Fatal(err)
	}
	if err := l.Resize(t.Context(), e.Ref, 4*size); !machine.IsKind(err, machine.Unavailable) {
		t.Errorf("without a daemon: %v", err)
	}
}

func TestSecretsAreNowhereToBeSeen(t *testing.T) {
	r := newRig(t)
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("SKIPPED, AND NOTHING IS PROVEN: qemu-img is not installed (Debian: qemu-utils)")
	}
	const passphrase = "correct horse battery staple"
	l, e := r.life(), r.export("m1", "data")
	file := e.Node["filename"].(string)
	key := filepath.Join(r.state, "key")
	if err := os.WriteFile(key, []byte(passphrase), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("qemu-img", "create", "-q", "-f", "luks", "--object", "secret,id=k,file="+key,
		"-o", "key-secret=k,iter-time=10", file, fmt.Sprint(size)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_ = os.Remove(key)
	e.Secrets = map[string]string{"pass": base64.StdEncoding.EncodeToString([]byte(passphrase))}
	e.Node = map[string]any{"driver": "luks", "key-secret": "pass", "file": map[string]any{"driver": "file", "filename": file}}
	if got := r.serve(l, e); got.SizeBytes != size {
		t.Errorf("%+v", got)
	}
	look := func(what string, raw []byte) {
		for _, secret := range []string{passphrase, e.Secrets["pass"]} {
			if bytes.Contains(raw, []byte(secret)) {
				t.Errorf("a secret is in %s", what)
			}
		}
	}
	seen := 0
	for _, part := range []string{"cmdline", "environ"} {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", r.pid(l, e.Ref), part))
		if err != nil || len(raw) == 0 {
			t.Fatalf("%s: %v", part, err)
		}
		look(part, raw)
	}
	for _, root := range []string{r.state, r.runtime} {
		_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() || path == file {
				return err
			}
			raw, err := os.ReadFile(path)
			look(path, raw)
			seen++
			return err
		})
	}
	if seen == 0 {
		t.Error("nothing was looked at")
	}
	if err := l.Stop(t.Context(), e.Ref, e.Dir); err != nil {
		t.Fatal(err)
	}
	// A wrong one is refused without being told, and leaves nothing.
	e.Secrets["pass"] = base64.StdEncoding.EncodeToString([]byte("something else"))
	if _, err := l.Serve(t.Context(), e); !machine.IsKind(err, machine.FailedPrecondition) || strings.Contains(err.Error(), "something else") {
		t.Errorf("wrong passphrase: %v", err)
	}
	r.nothing(l, e)
}

func TestWhateverHappensAtOnceThereIsOneDaemonAndInTheEndNone(t *testing.T) {
	r := newRig(t)
	l, e := r.life(), r.export("m1", "data")
	for range 5 {
		r.serve(l, e)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { _, _ = l.Serve(t.Context(), e) })
		}
		for _, pid := range r.pids(l, e.Ref) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // its watch starts another one meanwhile
		}
		all.Go(func() { _, _ = l.Serve(t.Context(), e) })
		all.Wait()
		if n := len(r.pids(l, e.Ref)); n > 1 {
			t.Errorf("%d daemons serve one volume", n)
		}
		for _, pid := range r.pids(l, e.Ref) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err := l.Stop(t.Context(), e.Ref, e.Dir); err != nil { // in the middle of a restart
			t.Fatal(err)
		}
		r.nothing(l, e)
	}
}

func TestTheEndOfThisProgramEndsNoDaemon(t *testing.T) {
	r := newRig(t)
	l, e := r.life(), r.export("m1", "data")
	r.serve(l, e)
	pid := r.pid(l, e.Ref)
	l.stop()
	next := r.life()
	if now := r.pid(next, e.Ref); now != pid {
		t.Errorf("%d became %d", pid, now)
	}
	if held, err := next.Held(t.Context()); err != nil || len(held) != 1 {
		t.Errorf("Held = %v, %v", held, err)
	}
	if err := next.Stop(t.Context(), e.Ref, e.Dir); err != nil { // one that no call has adopted yet
		t.Fatal(err)
	}
	r.nothing(next, e)
}

func TestAMissingProgramIsNamed(t *testing.T) {
	r := newRig(t)
	e, l := r.export("m1", "data"), r.life()
	l.o.Binary = "/nonexistent/qemu-storage-daemon"
	if _, err := l.Serve(t.Context(), e); !machine.IsKind(err, machine.FailedPrecondition) || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("%v", err)
	}
	r.nothing(l, e)
}
