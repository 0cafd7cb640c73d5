// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/store"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/registry"
)

// fakeMachines is a store of machines.
type fakeMachines struct {
	mu      sync.Mutex
	list    []*machine.Machine  // guarded by mu
	damaged []store.Quarantined // guarded by mu
}

func (f *fakeMachines) List() []*machine.Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list
}

func (f *fakeMachines) Quarantined() []store.Quarantined {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.damaged
}

func withDisks(id string, refs ...string) *machine.Machine {
	m := &machine.Machine{ID: id}
	for _, ref := range refs {
		m.Desired.Volumes = append(m.Desired.Volumes, machine.Volume{LocalDisk: &machine.LocalDisk{Image: &ref}})
	}
	return m
}

func TestEveryImageThatAMachineMayNeedIsReferenced(t *testing.T) {
	pinned := withDisks("pinned", "r/boot:1", "r/data:1")
	pinned.Record.Image = &machine.ImageRecord{Ref: "r/boot:1", Digest: "sha256:x"}
	repointed := withDisks("repointed", "r/boot:2")
	repointed.Record.Image = &machine.ImageRecord{Ref: "r/boot:1", Digest: "sha256:x"}
	gone := withDisks("going", "r/boot:3")
	gone.Desired.DeletedAt = new(time.Time)
	bare := withDisks("bare", "")
	bare.Desired.Volumes = append(bare.Desired.Volumes, machine.Volume{Connection: &machine.Connection{}}, machine.Volume{LocalDisk: &machine.LocalDisk{}})
	f := &fakeMachines{list: []*machine.Machine{withDisks("new", "r/boot:1"), pinned, repointed, gone, bare}}
	got, err := references(f)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []image.Use{
		{User: "new", Ref: "r/boot:1"},
		{User: "pinned", Ref: "r/boot:1", Digest: "sha256:x"},
		{User: "pinned", Ref: "r/data:1"},
		{User: "repointed", Ref: "r/boot:1", Digest: "sha256:x"},
		{User: "repointed", Ref: "r/boot:2"},
		{User: "going", Ref: "r/boot:3"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	f.damaged = []store.Quarantined{{Key: "lost"}}
	if _, err := references(f)(t.Context()); err == nil || !strings.Contains(err.Error(), "machine lost is set aside") {
		t.Errorf("with a machine that cannot be read: %v", err)
	}
}

// imageDaemon is as much of a daemon as the images command needs, with a registry.
type imageDaemon struct {
	t        *testing.T
	run      string
	cache    *image.Cache
	machines *fakeMachines
	host     string
	pulled   chan image.Event
}

func newImageDaemon(t *testing.T) *imageDaemon {
	t.Helper()
	reg, err := registry.Start(t.Context(), registry.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reg.Close() })
	run, err := os.MkdirTemp("/tmp", "chp-images-")
	if err != nil {
		t.Fatal(err)
	}
	d := &imageDaemon{t: t, run: run, host: reg.Host(), machines: &fakeMachines{}, pulled: make(chan image.Event, 100)}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	d.cache, err = image.New(image.Options{
		Dir: filepath.Join(t.TempDir(), imagesDir), PlainHTTP: []string{d.host}, References: references(d.machines), Logger: log,
		Observer: func(e image.Event) {
			if e.Kind == image.PullSucceeded || e.Kind == image.PullFailed {
				d.pulled <- e
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- (&parts{images: d.cache, log: log}).serveImages(ctx, &config.Config{RuntimeDir: run})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serveImages: %v", err)
		}
		d.cache.Close()
		_ = os.RemoveAll(run)
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(run, imagesSocket)); err == nil {
			return d
		}
		if time.Now().After(deadline) {
			t.Fatal("the socket is not there")
		}
	}
}

// pull pushes an image with a disk of that content and has the cache pull it.
func (d *imageDaemon) pull(repository string, disk []byte) *image.Image {
	d.t.Helper()
	ref := d.host + "/" + repository + ":v1"
	repo, err := remote.NewRepository(d.host + "/" + repository)
	if err != nil {
		d.t.Fatal(err)
	}
	repo.PlainHTTP = true
	layer, err := oras.PushBytes(d.t.Context(), repo, "application/vnd.ironcore.image.rootfs", disk)
	if err != nil {
		d.t.Fatal(err)
	}
	manifest, err := oras.PackManifest(d.t.Context(), repo, oras.PackManifestVersion1_1, "application/vnd.test",
		oras.PackManifestOptions{Layers: []ocispec.Descriptor{layer}})
	if err == nil {
		err = repo.Tag(d.t.Context(), manifest, "v1")
	}
	if err != nil {
		d.t.Fatal(err)
	}
	_, _ = d.cache.Get(d.t.Context(), ref)
	if e := <-d.pulled; e.Kind != image.PullSucceeded {
		d.t.Fatal(e.Err)
	}
	got, err := d.cache.Get(d.t.Context(), ref)
	if err != nil {
		d.t.Fatal(err)
	}
	return got
}

// command runs a sub-command and returns what it printed.
func (d *imageDaemon) command(args ...string) (string, error) {
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs(append(args, "--runtime-dir", d.run))
	root.SetOut(&out)
	root.SetErr(io.Discard)
	err := root.ExecuteContext(d.t.Context())
	return out.String(), err
}

func (d *imageDaemon) prints(pattern string, args ...string) {
	d.t.Helper()
	out, err := d.command(args...)
	if err != nil || !regexp.MustCompile(pattern).MatchString(out) {
		d.t.Errorf("%v: %v\n%swant %s", args, err, out, pattern)
	}
}

func TestTheImagesCommandTellsAndDoesWhatItSays(t *testing.T) {
	d := newImageDaemon(t)
	a, b := d.pull("os/a", []byte("disk a")), d.pull("os/b", bytes.Repeat([]byte("disk b"), 10000))
	d.machines.mu.Lock()
	d.machines.list = []*machine.Machine{withDisks("m1", a.Ref), withDisks("m2", a.Ref)}
	d.machines.mu.Unlock()

	d.prints(`(?s)^REF +DIGEST +SIZE +USED BY +LAST USED\n.*/os/a:v1 +sha256:[0-9a-f]{12} +12 KiB +2 +now\n`, "images")
	d.prints(`/os/b:v1 +sha256:[0-9a-f]{12} +[0-9.]+ KiB +0 +<1m\n`, "images")
	d.prints(`\n[0-9.]+ KiB without a budget; [0-9.]+ [GT]iB free, 64 MiB of that in reserve\n$`, "images")
	out, err := d.command("images", "-o", "json")
	var l image.Listing
	if err != nil || json.Unmarshal([]byte(out), &l) != nil || len(l.Images) != 2 {
		t.Errorf("JSON: %v\n%s", err, out)
	}
	d.prints(`^0 images would be removed, 0 bytes would be freed; 1 are in use, 1 were used a moment ago or are being pulled\n$`,
		"images", "prune", "--dry-run")
	d.prints(`^0 images removed, 0 bytes freed; 1 are in use, 1 were used a moment ago`, "images", "prune")
	d.prints(`(?s)sha256:[0-9a-f]{12}  \S+/os/a:v1  right\n.*2 images are right\n$`, "images", "verify")

	if err := os.WriteFile(b.RootFS.Path, bytes.Repeat([]byte("disk c"), 10000), 0o640); err != nil {
		t.Fatal(err)
	}
	out, err = d.command("images", "verify", b.Ref)
	if err == nil || err.Error() != "1 of 1 images were not right; what is missing now is pulled again when a machine needs it" ||
		!strings.Contains(out, "corrupt: verify blob "+b.RootFS.Digest.String()) {
		t.Errorf("verify of a damaged image: %v\n%s", err, out)
	}
	d.prints(`1 images are right`, "images", "verify", a.Digest.String()[:20])
	if _, err := d.command("images", "verify", "nothing"); err == nil || !strings.Contains(err.Error(), `there is no image "nothing"`) {
		t.Errorf("verify of what is not there: %v", err)
	}
	if _, err := named(l.Images, []string{"sha256:"}); err == nil || !strings.Contains(err.Error(), "may mean 2 images") {
		t.Errorf("an ambiguous name: %v", err)
	}

	d.machines.mu.Lock()
	d.machines.damaged = []store.Quarantined{{Key: "lost"}}
	d.machines.mu.Unlock()
	d.prints(`(?s)/os/a:v1 .* \? .*who uses the images is not known: .*machine lost is set aside`, "images")
	if _, err := d.command("images", "prune"); err == nil || !strings.Contains(err.Error(), "machine lost is set aside as damaged") {
		t.Errorf("prune in doubt: %v", err)
	}
}

func TestTheShellIsOfferedTheImagesThatAreThere(t *testing.T) {
	d := newImageDaemon(t)
	a := d.pull("os/a", []byte("disk a"))
	i := imaging{}
	cmd := &cobra.Command{}
	i.addFlags(cmd)
	if err := cmd.ParseFlags([]string{"--runtime-dir", d.run}); err != nil {
		t.Fatal(err)
	}
	got, _ := i.completeImages(cmd, nil, "")
	if want := []string{a.Ref, short(a.Digest) + "\t" + a.Ref}; !cmp.Equal(got, want) {
		t.Errorf("offered are %q, want %q", got, want)
	}
}

func TestWhatAPruneDidIsSaid(t *testing.T) {
	p := image.Pruned{InUse: 2, Removed: []image.Removed{
		{Digest: digest.FromString("a"), Tags: []string{"r/a:1", "r/a:2"}, Bytes: 3 << 30},
		{Digest: digest.FromString("b"), Bytes: 512 << 20},
	}}
	want := `would be removed  r/a:1 (+1)  sha256:ca978112ca1b  3 GiB
would be removed  -           sha256:3e23e8160039  512 MiB
2 images would be removed, 3.5 GiB would be freed; 2 are in use
`
	if d := cmp.Diff(want, pruneText(p, true)); d != "" {
		t.Error(d)
	}
	if got := pruneText(p, false); !strings.HasSuffix(got, "2 images removed, 3.5 GiB freed; 2 are in use\n") {
		t.Error(got)
	}
	if err := imagesWayOut(os.ErrPermission); !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "root and the group") {
		t.Error(err)
	}
}
