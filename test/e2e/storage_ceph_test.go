// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/ceph"
)

const passphrase = "correct horse battery staple"

// inCeph is a real cluster and a daemon whose machines have volumes there.
type inCeph struct {
	*daemon
	cluster *ceph.Cluster
	ref     string
	served  bool // by storage daemons
}

// startCeph starts a cluster for one test.
func startCeph(t *testing.T) *ceph.Cluster {
	t.Helper()
	if missing := ceph.Missing(); len(missing) > 0 {
		if os.Getenv("CEPH") != "" {
			t.Fatalf("MISSING: a real Ceph needs the packages %s", strings.Join(missing, " "))
		}
		t.Skipf("SKIPPED, AND NOTHING IS PROVEN: a real Ceph needs the packages %s", strings.Join(missing, " "))
	}
	dir, err := os.MkdirTemp("", "ceph")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cluster, err := ceph.Start(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Stop() })
	return cluster
}

// remote is an image as ironcore's providers of volumes describe one.
func (c *inCeph) remote(image, device string, mib int64, key string) *iri.Volume {
	v := &iri.Volume{Name: image, Device: device, Connection: &iri.VolumeConnection{
		Driver: "ceph", Handle: "handle-" + image, EffectiveStorageBytes: mib << 20,
		Attributes: map[string]string{"image": "rbd/" + image, "monitors": c.cluster.Monitor},
		SecretData: map[string][]byte{"userID": []byte(c.cluster.User), "userKey": []byte(c.cluster.Key)},
	}}
	if key != "" {
		v.Connection.EncryptionData = map[string][]byte{"encryptionKey": []byte(key)}
	}
	return v
}

func (c *inCeph) image(name string, mib int64, key string) {
	c.t.Helper()
	if err := c.cluster.CreateImage(c.t.Context(), name, mib<<20, key); err != nil {
		c.t.Fatal(err)
	}
}

func (c *inCeph) raw(name string) []byte {
	c.t.Helper()
	raw, err := c.cluster.Raw(c.t.Context(), name)
	if err != nil {
		c.t.Fatal(err)
	}
	return raw
}

// daemons are the storage daemons of a volume.
func (c *inCeph) daemons(id, volume string) (pids []int) {
	for _, pid := range c.vmms(id) {
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if bytes.Contains(env, []byte("/storage/"+id+"/"+volume+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

const seabios = "/usr/share/seabios/bios-256k.bin"

func TestVolumesInCeph(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("SKIPPED, AND NOTHING IS PROVEN: the guest that boots from an image is for amd64")
	}
	cluster := startCeph(t)
	for _, access := range []string{"auto", "storage-daemon"} {
		t.Run(access, func(t *testing.T) {
			binary, _, _ := programs(t)
			registryHost, ref := serve(t)
			c := &inCeph{
				daemon: newDaemon(t, binary, registryHost, "--hypervisor", "qemu", "--qemu-firmware", seabios,
					"--volumes-ceph-access", access, "--volumes-resize-by-replug", "allowed"),
				cluster: cluster, ref: ref, served: access != "auto",
			}
			c.start()
			id := c.up(newMachine(ref, "ceph-"+access))
			c.keepsSecrets(id, access)
			c.bootsFromAnImage(access)
			c.grows(id, "plain-"+access, "crypt-"+access)
			if c.served {
				c.outlivesItsDaemon(id, "crypt-"+access)
			}
			c.saysWhatIsWrong(id, "plain-"+access)
			c.waitsForTheCluster(id, "late-"+access)
			c.detachVolume(id, "crypt-"+access)
			c.volumes(id, "root", "data", "plain-"+access)
			c.gone(id)
			c.audit(0)
			if left, _ := os.ReadDir(c.path("run", "sd")); len(left) > 0 {
				t.Errorf("sockets left: %v", left)
			}
			c.sigterm()
		})
	}
}

// keepsSecrets has a guest write to a plain and to an encrypted image, and looks at what is in the cluster.
func (c *inCeph) keepsSecrets(id, access string) {
	c.t.Helper()
	plain, crypt := "plain-"+access, "crypt-"+access
	c.image(plain, 26, "")
	c.image(crypt, 28, passphrase)
	asked := c.attachVolume(id, c.remote(plain, "odp", 26, ""))
	c.soon(id, "attach from Ceph", asked, fmt.Sprintf("bytes=%d", 26<<20))
	asked = c.attachVolume(id, c.remote(crypt, "odq", 28, passphrase))
	c.says(id, fmt.Sprintf("bytes=%d", 28<<20), 1)
	c.t.Logf("attach with LUKS2: %s", time.Since(asked).Round(time.Millisecond))
	c.volumes(id, "root", "data", plain, crypt)
	const marker = "what-the-guest-wrote"
	sector, err := os.ReadFile("../../internal/vmm/qemu/testdata/guest.bin")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, size := range []int64{26, 28} {
		disk := c.diskOfSize(id, size<<20)
		c.shell(id, fmt.Sprintf("echo %s | base64 -d | dd of=/dev/%s conv=fsync 2>/dev/null", base64.StdEncoding.EncodeToString(sector), disk))
		c.shell(id, fmt.Sprintf("echo %s | dd of=/dev/%s bs=4096 seek=1 conv=fsync 2>/dev/null; sync", marker, disk))
	}
	if raw := c.raw(plain); !bytes.Contains(raw, []byte(marker)) {
		c.t.Error("what the guest wrote is not in the plain image, so nothing is proven")
	}
	raw := c.raw(crypt)
	if bytes.Contains(raw, []byte(marker)) || bytes.Contains(raw, []byte("READY")) {
		c.t.Error("the encrypted image holds plaintext")
	}
	if !bytes.HasPrefix(raw, []byte("LUKS\xba\xbe\x00\x02")) {
		c.t.Error("the encrypted image has no header of LUKS2")
	}
	c.secretsOutOfSight(id)
}

// secretsOutOfSight looks for keys in arguments, environments, logs, events and files of the daemon and its machine; the
// store alone has them.
func (c *inCeph) secretsOutOfSight(id string) {
	c.t.Helper()
	secrets := []string{c.cluster.Key, passphrase, base64.StdEncoding.EncodeToString([]byte(passphrase))}
	look := func(what string, raw []byte) {
		for _, s := range secrets {
			if bytes.Contains(raw, []byte(s)) {
				c.t.Errorf("a key is in %s", what)
			}
		}
	}
	for _, pid := range c.vmms(id) {
		for _, part := range []string{"cmdline", "environ"} {
			raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, part))
			look(part, raw)
		}
	}
	for _, root := range []string{c.path("run"), c.path("state", "machines")} {
		_ = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() && !strings.HasPrefix(entry.Name(), "disk.") {
				raw, _ := os.ReadFile(path)
				look(path, raw)
			}
			return nil
		})
	}
	raw, _ := os.ReadFile(c.path("daemon.log"))
	look("the log", raw)
}

// bootsFromAnImage starts machines that have nothing but an image in Ceph, plain and encrypted: what the first guest
// wrote into their first sectors.
func (c *inCeph) bootsFromAnImage(access string) {
	c.t.Helper()
	for kind, key := range map[string]string{"plain": "", "crypt": passphrase} {
		name := fmt.Sprintf("boot-%s-%s", kind, access)
		if _, err := c.cluster.RBD(c.t.Context(), nil, "cp", "--no-progress", "rbd/"+kind+"-"+access, "rbd/"+name); err != nil {
			c.t.Fatal(err)
		}
		m := newMachine(c.ref, name)
		m.Spec.Volumes = []*iri.Volume{c.remote(name, "oda", 24, key)}
		id := c.create(m)
		c.state(id, iri.MachineState_MACHINE_RUNNING)
		c.says(id, "READY", 1)
		c.gone(id)
	}
}

// grows has images grow in the cluster, by more than what is asked for next, and the guest see it. A plain one with QEMU as
// the client is seen at once; the others are put in anew, which this daemon may do.
func (c *inCeph) grows(id, plain, crypt string) {
	c.t.Helper()
	for image, mib := range map[string]int{plain: 31, crypt: 16 + 52} {
		if _, err := c.cluster.RBD(c.t.Context(), nil, "resize", "--no-progress", "--size", fmt.Sprintf("%dM", mib), "rbd/"+image); err != nil {
			c.t.Fatal(err)
		}
	}
	asked := c.updateVolume(id, c.remote(plain, "odp", 30, ""))
	if c.served {
		c.says(id, fmt.Sprintf("bytes=%d", 31<<20), 1)
	} else {
		c.soon(id, "grow in Ceph", asked, fmt.Sprintf("guest: resize %s bytes=%d", c.diskOfSize(id, 26<<20), 31<<20))
	}
	if n := len(c.raw(plain)); n != 31<<20 {
		c.t.Errorf("the image had %d bytes and has %d", 31<<20, n)
	}
	name := crypt
	asked = c.updateVolume(id, c.remote(crypt, "odq", 52, passphrase))
	c.says(id, fmt.Sprintf("bytes=%d", 52<<20), 1)
	c.t.Logf("grow with LUKS2: %s", time.Since(asked).Round(time.Millisecond))
	if n := len(c.raw(crypt)); n != (16+52)<<20 {
		c.t.Errorf("the encrypted image had %d bytes and has %d", (16+52)<<20, n)
	}
	disk := c.diskOfSize(id, 52<<20)
	c.shell(id, fmt.Sprintf("echo at-the-end | dd of=/dev/%s bs=1048576 seek=51 conv=fsync 2>/dev/null; sync", disk))
	if got := strings.TrimSpace(c.shell(id, fmt.Sprintf("dd if=/dev/%s bs=4096 skip=1 count=1 2>/dev/null | head -c 20; echo", disk))); got != "what-the-guest-wrote" {
		c.t.Errorf("after it grew the image holds %q", got)
	}
	if bytes.Contains(c.raw(name), []byte("at-the-end")) {
		c.t.Error("the part that was added holds plaintext")
	}
}

// outlivesItsDaemon kills this daemon, and the storage daemon under a guest that writes.
func (c *inCeph) outlivesItsDaemon(id, name string) {
	c.t.Helper()
	before := c.daemons(id, name)
	if len(before) != 1 {
		c.t.Fatalf("%d storage daemons", len(before))
	}
	prepared := "step=volume.prepare target=" + name
	count := func() int {
		raw, _ := os.ReadFile(c.path("daemon.log"))
		return strings.Count(string(raw), prepared)
	}
	times := count()
	c.sigkill()
	c.start()
	c.state(id, iri.MachineState_MACHINE_RUNNING)
	c.until("the daemon has taken up its storage daemons", func() bool { return count() > times })
	if now := c.daemons(id, name); len(now) != 1 || now[0] != before[0] {
		c.t.Errorf("storage daemon %v became %v", before, now)
	}
	disk := c.diskOfSize(id, 52<<20)
	victim := c.daemons(id, name)
	if err := syscall.Kill(victim[0], syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
	killed := time.Now()
	c.write(id, disk, "after-the-kill") // waits for the storage daemon that follows, and for Ceph to give up the dead one
	c.t.Logf("guest I/O after a kill of the storage daemon: %s", time.Since(killed).Round(time.Millisecond))
	if now := c.daemons(id, name); len(now) != 1 || now[0] == victim[0] {
		c.t.Errorf("storage daemon %v became %v", victim, now)
	}
	c.tells(id, "is served again")
	c.condition(id, "Attached")
}

// saysWhatIsWrong attaches what cannot be attached, and has another machine made meanwhile.
func (c *inCeph) saysWhatIsWrong(id, image string) {
	c.t.Helper()
	usual := c.makesAnother("usual")
	wrong := c.remote(image, "odw", 24, "")
	wrong.Name, wrong.Connection.Handle = "wrong", "wrong"
	wrong.Connection.SecretData["userKey"] = []byte("AQBzVGNlAAAAABAA8vl3HXmFMJ6fDxkTeXLtnQ==")
	c.attachVolume(id, wrong)
	if took := c.makesAnother("meanwhile"); took > 3*usual+10*time.Second {
		c.t.Errorf("another machine took %s while a volume cannot be opened, %s else", took, usual)
	} else {
		c.t.Logf("another machine: %s while a volume cannot be opened, %s else", took, usual)
	}
	c.condition(id, "the user or its key is wrong")
	c.detachVolume(id, "wrong")

	missing := c.remote("no-such-image", "odw", 24, "")
	c.attachVolume(id, missing)
	c.condition(id, "there is no such pool or image")
	c.detachVolume(id, "no-such-image")
}

// waitsForTheCluster attaches an image whose cluster is away, and then comes back.
func (c *inCeph) waitsForTheCluster(id, image string) {
	c.t.Helper()
	c.image(image, 18, "")
	if err := c.cluster.StopMonitor(); err != nil {
		c.t.Fatal(err)
	}
	c.attachVolume(id, c.remote(image, "odw", 18, ""))
	c.condition(id, "no monitor of the Ceph cluster answers")
	c.makesAnother("without Ceph")
	if err := c.cluster.StartMonitor(); err != nil {
		c.t.Fatal(err)
	}
	c.condition(id, "Attached")
	c.says(id, fmt.Sprintf("bytes=%d", 18<<20), 1)
	c.detachVolume(id, image)
}

// makesAnother measures how long a machine takes from its creation to its run.
func (c *inCeph) makesAnother(name string) time.Duration {
	c.t.Helper()
	start := time.Now()
	id := c.create(newMachine(c.ref, name))
	c.state(id, iri.MachineState_MACHINE_RUNNING)
	took := time.Since(start)
	c.gone(id)
	return took
}
