// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
)

func TestAByteThatFlipsInTheCacheReachesNoDisk(t *testing.T) {
	binary, _, fake := programs(t)
	registryHost, ref := serve(t)
	d := newDaemon(t, binary, registryHost, fakeBackend(fake).args...)
	d.start()
	var ids []string
	create := func(uid string) {
		t.Helper()
		id := d.create(newMachine(ref, uid))
		d.state(id, iri.MachineState_MACHINE_RUNNING)
		ids = append(ids, id)
		blob, size := d.biggestBlob()
		if got := d.hashOfDisk(id, size); got != blob {
			t.Errorf("the disk of %s begins with %s, want %s", uid, got, blob)
		}
	}
	create("first")

	d.sigterm() // the daemon is down when it happens
	d.flip()
	d.start()
	create("second")

	d.flip() // it runs, and has handed the image out before
	create("third")

	out, err := exec.Command(binary, "images", "--config", d.path("config.yaml")).CombinedOutput()
	if err != nil || !regexp.MustCompile(`/test/guest:1 +sha256:[0-9a-f]{12} +[0-9.]+ MiB +3 +now\n`).Match(out) {
		t.Errorf("images: %v\n%s", err, out)
	}
	if n := strings.Count(d.log(), "removing corrupt blob"); n != 2 {
		t.Errorf("%d corrupt blobs were thrown away, want 2", n)
	}
	for _, id := range ids {
		d.gone(id)
	}
	d.audit(0)
	d.sigterm()
}

// biggestBlob returns name and size of the disk in the image cache.
func (d *daemon) biggestBlob() (name string, size int64) {
	d.t.Helper()
	entries, err := os.ReadDir(d.path("state", "images", "blobs", "sha256"))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Size() > size {
			name, size = e.Name(), info.Size()
		}
	}
	return name, size
}

// hashOfDisk hashes the beginning of a machine's root disk.
func (d *daemon) hashOfDisk(id string, size int64) string {
	d.t.Helper()
	f, err := os.Open(d.path("state", "machines", id, "volumes", "root", "disk.raw"))
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.CopyN(h, f, size); err != nil {
		d.t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// flip changes one byte of the cached disk where it is, and sets its time of change back.
func (d *daemon) flip() {
	d.t.Helper()
	name, size := d.biggestBlob()
	path := d.path("state", "images", "blobs", "sha256", name)
	info, err := os.Stat(path)
	if err != nil {
		d.t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var b [1]byte
	if _, err = f.ReadAt(b[:], size/2); err == nil {
		b[0] ^= 1
		_, err = f.WriteAt(b[:], size/2)
	}
	if err == nil {
		err = os.Chtimes(path, info.ModTime(), info.ModTime())
	}
	if err != nil {
		d.t.Fatal(err)
	}
}
