// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
)

func TestWhatVolumesNeedIsSaid(t *testing.T) {
	const driver = "usr/lib/x86_64-linux-gnu/qemu/block-rbd.so"
	for name, c := range map[string]struct {
		volumes Volumes
		have    []string
		driver  bool
		qemu    bool
		item    string
		status  Status
		want    string
	}{
		"all, on Cloud Hypervisor":  {have: []string{"qemu-img", "qemu-storage-daemon"}, driver: true, item: "ceph", status: OK, want: "are served by /usr/bin/qemu-storage-daemon"},
		"all, on QEMU":              {have: []string{"qemu-img"}, driver: true, qemu: true, item: "ceph", status: OK, want: "opened by the hypervisor"},
		"no block driver":           {have: []string{"qemu-img", "qemu-storage-daemon"}, item: "ceph", status: OK, want: "qemu-block-extra"},
		"no daemon, not asked for":  {have: []string{"qemu-img"}, driver: true, item: "ceph", status: OK, want: "refused; missing: qemu-storage-daemon"},
		"no daemon, asked for":      {volumes: Volumes{ServeCeph: true}, have: []string{"qemu-img"}, driver: true, qemu: true, item: "ceph", status: Warn, want: "refused; missing: qemu-storage-daemon"},
		"the configured one is not": {volumes: Volumes{StorageDaemon: "/opt/qsd"}, have: []string{"qemu-img"}, driver: true, item: "ceph", status: Fail, want: "/opt/qsd"},
		"no qemu-img":               {item: "qemu-img", status: OK, want: "refused without it"},
		"no qemu-img for overlays":  {volumes: Volumes{Overlays: true}, item: "qemu-img", status: Warn, want: "overlays are configured"},
	} {
		f := &found{Options: Options{Volumes: c.volumes}}
		f.Probes.Finder = host.Finder{OS: "linux", LookPath: lookPath(c.have...), FS: fstest.MapFS{}}
		if c.driver {
			f.Probes.Finder.FS = fstest.MapFS{driver: {}}
		}
		f.decision.Driver = host.CloudHypervisor
		if c.qemu {
			f.decision.Driver = host.QEMU
		}
		for _, item := range f.volumeTools() {
			if item.Name == c.item && (item.Status != c.status || !strings.Contains(item.Detail, c.want)) {
				t.Errorf("%s: %+v", name, item)
			}
		}
	}
}
