// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package ceph_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	plugin "github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume/ceph"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume/storagedaemon"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/ceph"
)

const (
	machineID  = "11111111-1111-4111-8111-111111111111"
	passphrase = "correct horse battery staple"
)

// shared is the one cluster of all tests here; they use images of their own.
var shared *ceph.Cluster

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if missing := ceph.Missing(); len(missing) > 0 {
			if os.Getenv("CEPH") != "" {
				println("MISSING: a real Ceph needs the packages", strings.Join(missing, " "))
				return 1
			}
			return m.Run() // each test says what is missing
		}
		dir, err := os.MkdirTemp("", "ceph")
		if err == nil {
			defer func() { _ = os.RemoveAll(dir) }()
			shared, err = ceph.Start(context.Background(), dir)
		}
		if err != nil {
			println(err.Error())
			return 1
		}
		defer func() { _ = shared.Stop() }()
		return m.Run()
	}())
}

func cluster(t *testing.T) *ceph.Cluster {
	t.Helper()
	if shared == nil {
		t.Skipf("SKIPPED, AND NOTHING IS PROVEN: a real Ceph needs the packages %s", strings.Join(ceph.Missing(), " "))
	}
	return shared
}

func request(t *testing.T, c *ceph.Cluster, image string, size int64, key string) volume.Request {
	v := machine.Volume{Name: image, Device: "odb", Connection: &machine.Connection{
		Driver: "ceph", Handle: "handle-" + image, EffectiveStorageBytes: size,
		Attributes: map[string]string{"image": "rbd/" + image, "monitors": c.Monitor},
		SecretData: map[string][]byte{"userID": []byte(c.User), "userKey": []byte(c.Key)},
	}}
	if key != "" {
		v.Connection.EncryptionData = map[string][]byte{"encryptionKey": []byte(key)}
	}
	return volume.Request{MachineID: machineID, Volume: v, Dir: filepath.Join(t.TempDir(), image)}
}

func create(t *testing.T, c *ceph.Cluster, image string, size int64, key string) {
	t.Helper()
	if err := c.CreateImage(t.Context(), image, size, key); err != nil {
		t.Fatal(err)
	}
}

// served is a plugin whose images are served by daemons, and what its manager told of.
type served struct {
	*plugin.Plugin
	manager    *storagedaemon.Manager
	supervisor process.Supervisor
	changes    atomic.Int32
}

func serve(t *testing.T, runtime string) *served {
	t.Helper()
	s := &served{}
	var err error
	if s.supervisor, err = process.NewChild(process.Options{}); err != nil {
		t.Fatal(err)
	}
	s.manager, err = storagedaemon.New(storagedaemon.Options{
		Supervisor: s.supervisor, StateID: "state-of-test", RuntimeDir: runtime, Changed: func(volume.Ref, string) { s.changes.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.manager.Close(); _ = s.supervisor.Close() })
	if s.Plugin, err = plugin.New(plugin.Options{Daemons: s.manager}); err != nil {
		t.Fatal(err)
	}
	return s
}

func runtimeDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "sd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestAnImageIsOpenedAndMeasured(t *testing.T) {
	c := cluster(t)
	create(t, c, "native", 64<<20, "")
	p, err := plugin.New(plugin.Options{Native: true})
	if err != nil {
		t.Fatal(err)
	}
	req := request(t, c, "native", 32<<20, "")
	got, err := p.Prepare(t.Context(), req)
	if err != nil || got.SizeBytes != 64<<20 || got.RBD == nil || got.RBD.Image != "native" || got.Handle != "handle-native" {
		t.Fatalf("Prepare = %+v, %v", got, err)
	}
	for range 2 {
		if err := p.Release(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(req.Dir); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
}

func TestWhatIsWrongIsSaidInTimeAndWithoutKeys(t *testing.T) {
	c := cluster(t)
	create(t, c, "plain", 32<<20, "")
	create(t, c, "secret", 32<<20, passphrase)
	wrongKey := "AQBzVGNlAAAAABAA8vl3HXmFMJ6fDxkTeXLtnQ=="
	for name, tc := range map[string]struct {
		image  string
		key    string
		change func(*machine.Connection)
		want   string
		kind   machine.Kind
	}{
		"the wrong key":           {image: "plain", change: func(v *machine.Connection) { v.SecretData["userKey"] = []byte(wrongKey) }, want: "user", kind: machine.FailedPrecondition},
		"an unknown user":         {image: "plain", change: func(v *machine.Connection) { v.SecretData["userID"] = []byte("nobody") }, want: "user", kind: machine.FailedPrecondition},
		"no such image":           {image: "none", want: "no such pool or image", kind: machine.FailedPrecondition},
		"nobody at the monitor":   {image: "plain", change: func(v *machine.Connection) { v.Attributes["monitors"] = "127.0.0.1:1" }, want: "no monitor", kind: machine.Unavailable},
		"a key for a plain image": {image: "plain", key: passphrase, want: "LUKS2", kind: machine.FailedPrecondition},
		"the wrong passphrase":    {image: "secret", key: "something else", want: "LUKS2", kind: machine.FailedPrecondition},
	} {
		p, err := plugin.New(plugin.Options{Native: true})
		if err != nil {
			t.Fatal(err)
		}
		req := request(t, c, tc.image, 1<<20, tc.key)
		if tc.change != nil {
			tc.change(req.Volume.Connection)
		}
		start := time.Now()
		_, err = p.Prepare(t.Context(), req)
		if err == nil || !strings.Contains(err.Error(), tc.want) || !machine.IsKind(err, tc.kind) {
			t.Errorf("%s: %v (%v)", name, err, machine.KindOf(err))
			continue
		}
		if took := time.Since(start); took > 40*time.Second {
			t.Errorf("%s: took %s", name, took)
		}
		for _, secret := range []string{c.Key, wrongKey, passphrase} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: a key is told: %v", name, err)
			}
		}
	}
}

// arguments are the command line and environment of all processes whose name begins so.
func arguments(t *testing.T, name string) string {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/comm")
	var all bytes.Buffer
	for _, f := range files {
		comm, _ := os.ReadFile(f)
		if !strings.HasPrefix(string(comm), name) {
			continue
		}
		for _, part := range []string{"cmdline", "environ"} {
			raw, _ := os.ReadFile(filepath.Join(filepath.Dir(f), part))
			all.Write(raw)
		}
	}
	return all.String()
}

func TestAnEncryptedImageIsServedWithItsInnerSizeAndWithoutAKeyInSight(t *testing.T) {
	c := cluster(t)
	create(t, c, "crypt", 32<<20, passphrase)
	s := serve(t, runtimeDir(t))
	req := request(t, c, "crypt", 32<<20, passphrase)
	got, err := s.Prepare(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Release(context.Background(), req) })
	if got.VhostUser == "" || got.RBD != nil || got.SizeBytes != 32<<20 {
		t.Errorf("Prepare = %+v", got)
	}
	if info, err := os.Stat(got.VhostUser); err != nil || info.Mode()&os.ModeSocket == 0 {
		t.Errorf("socket: %v, %v", info, err)
	}
	seen := arguments(t, "qemu-storage-")
	for _, secret := range []string{c.Key, passphrase} {
		if strings.Contains(seen, secret) {
			t.Error("a key is in the arguments")
		}
	}
	if !strings.Contains(seen, "control") {
		t.Fatal("the arguments were not found, so nothing is proven")
	}
	if err := s.Release(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if raw, err := c.Raw(t.Context(), "crypt"); err != nil || !bytes.HasPrefix(raw, []byte("LUKS\xba\xbe\x00\x02")) {
		t.Errorf("the image is not encrypted, %v", err)
	}
}

func TestADaemonThatIsKilledIsFollowedByAnother(t *testing.T) {
	c := cluster(t)
	create(t, c, "killed", 32<<20, "")
	runtime := runtimeDir(t)
	s := serve(t, runtime)
	req := request(t, c, "killed", 32<<20, "")
	got, err := s.Prepare(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Release(context.Background(), req) })
	before := only(t, s)
	if err := syscall.Kill(before.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another daemon serves", func() bool {
		found, err := s.supervisor.FindAll(t.Context(), before.Marker[:strings.LastIndex(before.Marker, "/")])
		return err == nil && len(found) == 1 && found[0].PID != before.PID && s.changes.Load() >= 2
	})
	again, err := s.Prepare(t.Context(), req)
	if err != nil || again.VhostUser != got.VhostUser {
		t.Errorf("%+v, %v", again, err)
	}

	// A restart of this program finds the same daemon.
	second := only(t, s)
	s.manager.Close()
	next := serve(t, runtime)
	if again, err = next.Prepare(t.Context(), req); err != nil || again.VhostUser != got.VhostUser || only(t, next).PID != second.PID {
		t.Errorf("after a restart: %+v, %v", again, err)
	}
	held, err := next.Held(t.Context())
	if err != nil || len(held) != 1 || held[0] != (volume.Ref{MachineID: machineID, Name: "killed"}) {
		t.Errorf("Held = %v, %v", held, err)
	}
	for range 2 {
		if err := next.Release(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := os.ReadDir(runtime); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func only(t *testing.T, s *served) process.Identity {
	t.Helper()
	found, err := s.supervisor.FindAll(t.Context(), "state-of-test/storage/"+machineID+"/")
	if err != nil || len(found) != 1 {
		t.Fatalf("%d daemons, %v", len(found), err)
	}
	return found[0]
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestAServedImageGrowsAndNeverShrinks(t *testing.T) {
	c := cluster(t)
	create(t, c, "grow", 32<<20, "")
	s := serve(t, runtimeDir(t))
	req := request(t, c, "grow", 32<<20, "")
	req.Volume.Connection.Attributes["total_iops_sec"] = "1000" // limits take nothing from the rest
	t.Cleanup(func() { _ = s.Release(context.Background(), req) })
	for _, step := range []struct{ there, want, got int64 }{
		{want: 32 << 20, got: 32 << 20},
		{want: 64 << 20, got: 64 << 20},
		{want: 48 << 20, got: 64 << 20},
		{there: 128 << 20, want: 96 << 20, got: 128 << 20}, // its owner was faster, and more generous
	} {
		if step.there > 0 {
			resize(t, c, "grow", step.there)
		}
		req.Volume.Connection.EffectiveStorageBytes = step.want
		if p, err := s.Prepare(t.Context(), req); err != nil || p.SizeBytes != step.got || p.Fixed {
			t.Errorf("%d: %+v, %v", step.want, p, err)
		}
		if raw, err := c.Raw(t.Context(), "grow"); err != nil || int64(len(raw)) != step.got {
			t.Errorf("the image has %d bytes, want %d; %v", len(raw), step.got, err)
		}
	}
}

// A daemon that was told the size of an encrypted image without its header cut the header's size off the data.
func TestAnEncryptedImageIsNeverResizedByWhoHasItOpen(t *testing.T) {
	c := cluster(t)
	create(t, c, "fixed", 32<<20, passphrase)
	s := serve(t, runtimeDir(t))
	req := request(t, c, "fixed", 32<<20, passphrase)
	t.Cleanup(func() { _ = s.Release(context.Background(), req) })
	for _, step := range []struct{ there, want, got int64 }{
		{want: 32 << 20, got: 32 << 20}, {want: 40 << 20, got: 32 << 20}, {there: 72 << 20, want: 40 << 20, got: 56 << 20},
	} {
		there := int64(48 << 20) // with a header of 16 MiB
		if step.there > 0 {
			there = step.there
			resize(t, c, "fixed", there)
		}
		req.Volume.Connection.EffectiveStorageBytes = step.want
		if p, err := s.Prepare(t.Context(), req); err != nil || p.SizeBytes != step.got || !p.Fixed {
			t.Errorf("%d: %+v, %v", step.want, p, err)
		}
		if raw, err := c.Raw(t.Context(), "fixed"); err != nil || int64(len(raw)) != there {
			t.Errorf("the image has %d bytes, want %d; %v", len(raw), there, err)
		}
	}
}

func resize(t *testing.T, c *ceph.Cluster, image string, bytes int64) {
	t.Helper()
	if _, err := c.RBD(t.Context(), nil, "resize", "--no-progress", "--size", fmt.Sprint(bytes)+"B", "rbd/"+image); err != nil {
		t.Fatal(err)
	}
}

func TestAMonitorThatComesBackIsUsedAgain(t *testing.T) {
	c := cluster(t)
	create(t, c, "lost", 32<<20, "")
	s := serve(t, runtimeDir(t))
	req := request(t, c, "lost", 32<<20, "")
	t.Cleanup(func() { _ = s.Release(context.Background(), req) })
	if err := c.StopMonitor(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err := s.Prepare(t.Context(), req)
	if took := time.Since(start); !machine.IsKind(err, machine.Unavailable) || took > 30*time.Second {
		t.Errorf("%v after %s", err, took)
	}
	if err := c.StartMonitor(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the volume is served", func() bool { _, err := s.Prepare(t.Context(), req); return err == nil })
}
