// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func local(name, device string, mib int64) *iri.Volume {
	return &iri.Volume{Name: name, Device: device, LocalDisk: &iri.LocalDisk{SizeBytes: mib << 20}}
}

func TestLocalDisksChangeUnderARealGuest(t *testing.T) {
	d, id := onQEMU(t, "local-disks")
	pid := d.vmm(id)

	more := local("more", "odm", 8)
	asked := d.attachVolume(id, more)
	d.soon(id, "attach", asked, "serial="+machine.Serial(id, "more", "odm")+fmt.Sprintf(" bytes=%d", 8<<20))
	d.volumes(id, "root", "data", "more")
	d.write(id, d.diskOfSize(id, 8<<20), "written-at-eight")

	more.LocalDisk.SizeBytes = 16 << 20
	asked = d.updateVolume(id, more)
	d.soon(id, "grow", asked, fmt.Sprintf("guest: resize %s bytes=%d", d.diskOfSize(id, 8<<20), 16<<20))
	_, err := d.UpdateVolume(t.Context(), &iri.UpdateVolumeRequest{MachineId: id, Volume: local("more", "odm", 4)})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "size_bytes") {
		t.Errorf("a disk was shrunk: %v", err)
	}

	// The machinepoollet expresses another size like this, within milliseconds. Data stay.
	d.detachVolume(id, "more")
	asked = d.attachVolume(id, local("more", "odm", 36))
	d.soon(id, "detach and attach with another size", asked, fmt.Sprintf("bytes=%d", 36<<20))
	d.volumes(id, "root", "data", "more")
	if got := d.read(id, d.diskOfSize(id, 36<<20), 16); got != "written-at-eight" {
		t.Errorf("after the change of size the disk begins with %q", got)
	}
	d.growsItsRoot(id)
	if now := d.vmm(id); now != pid {
		t.Errorf("the VMM's pid was %d and is %d", pid, now)
	}
	d.changesWhileOff(id)
	d.survivesKills(id)
	d.gone(id)
	d.audit(0)
	d.sigterm()
}

// growsItsRoot changes the size of the disk that the guest runs from, as the machinepoollet does.
func (d *daemon) growsItsRoot(id string) {
	d.t.Helper()
	const larger = 96 << 20
	i := slices.IndexFunc(d.get(id).Spec.Volumes, func(v *iri.Volume) bool { return v.Name == "root" })
	root := d.get(id).Spec.Volumes[i]
	root.LocalDisk.SizeBytes = larger
	d.detachVolume(id, "root")
	d.attachVolume(id, root)
	d.says(id, fmt.Sprintf("bytes=%d", larger), 1)
	d.volumes(id, "root", "data", "more")
	d.shell(id, "echo still > /disk/still && sync && cat /disk/still")
}

// changesWhileOff attaches, grows and detaches without a guest, and looks at what the next one sees.
func (d *daemon) changesWhileOff(id string) {
	d.t.Helper()
	d.power(id, iri.Power_POWER_OFF)
	d.state(id, iri.MachineState_MACHINE_SUSPENDED)
	off := local("off", "odo", 8)
	d.attachVolume(id, off)
	off.LocalDisk.SizeBytes = 40 << 20
	d.updateVolume(id, off)
	d.detachVolume(id, "data")
	var names []string
	for _, v := range d.get(id).Spec.Volumes {
		names = append(names, v.Name)
	}
	if !slices.Contains(names, "off") || slices.Contains(names, "data") {
		d.t.Errorf("the spec has %v", names)
	}
	d.power(id, iri.Power_POWER_ON)
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	d.says(id, "guest: ready login:", 2)
	d.volumes(id, "root", "more", "off")
	d.says(id, fmt.Sprintf("serial=%s bytes=%d", machine.Serial(id, "off", "odo"), 40<<20), 1)
	if got := strings.TrimSpace(d.shell(id, "ls /sys/block | grep -c ^vd")); got != "3" {
		d.t.Errorf("the guest has %s disks", got)
	}
}

// survivesKills kills the daemon right after it has accepted something.
func (d *daemon) survivesKills(id string) {
	d.t.Helper()
	d.attachVolume(id, local("late", "odl", 12))
	d.sigkill()
	d.start()
	d.volumes(id, "root", "more", "off", "late")
	d.says(id, fmt.Sprintf("bytes=%d", 12<<20), 1)
	d.detachVolume(id, "late")
	d.sigkill()
	d.start()
	d.volumes(id, "root", "more", "off")
}

func TestADiskThatIsAnOverlayBootsAfterItsImageLeftTheCache(t *testing.T) {
	d, id := onQEMU(t, "overlay", "--volumes-local-disk-overlays", "auto")
	overlay := d.path("state", "machines", id, "volumes", "root", "disk.qcow2")
	if _, err := os.Stat(overlay); err != nil {
		if _, raw := os.Stat(d.path("state", "machines", id, "volumes", "root", "disk.raw")); raw == nil {
			t.Skip("SKIPPED, AND NOTHING IS PROVEN: the file system clones files, or qemu-img is missing, so there are no overlays")
		}
		t.Fatal(err)
	}
	d.shell(id, "echo kept > /disk/kept && sync")
	d.power(id, iri.Power_POWER_OFF)
	d.state(id, iri.MachineState_MACHINE_SUSPENDED)
	// The cache may drop the name of a blob; the disk has a name of its own for the bytes.
	if n := d.dropFromCache(d.path("state", "machines", id, "volumes", "root", "base.raw")); n != 1 {
		t.Fatalf("%d blobs are linked to the disk", n)
	}
	root := local("root", "oda", 128)
	root.LocalDisk.Image = d.get(id).Spec.Volumes[0].LocalDisk.Image
	d.detachVolume(id, "root")
	d.attachVolume(id, root)
	d.power(id, iri.Power_POWER_ON)
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	d.says(id, "guest: boot-count 2", 1)
	d.says(id, fmt.Sprintf("bytes=%d", 128<<20), 1)
	if got := strings.TrimSpace(d.shell(id, "cat /disk/kept")); got != "kept" {
		t.Errorf("the disk holds %q", got)
	}
	d.gone(id)
	d.audit(0)
}

// dropFromCache removes the cached blobs that are the same file as base.
func (d *daemon) dropFromCache(base string) (n int) {
	d.t.Helper()
	want, err := os.Stat(base)
	if err != nil {
		d.t.Fatal(err)
	}
	_ = filepath.WalkDir(d.path("state", "images"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if info, err := os.Stat(path); err == nil && os.SameFile(info, want) {
			n++
			return os.Remove(path)
		}
		return nil
	})
	return n
}
