// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"strings"
	"testing"
)

func TestSettingsOfVolumesAreCheckedTogether(t *testing.T) {
	for name, c := range map[string]struct {
		body, want string
	}{
		"an unknown policy":          {"volumes: {cachePolicy: writebak}\n", `volumes.cachePolicy: "writebak" is none of none, writeback, writethrough, directsync, unsafe; did you mean writeback?`},
		"no policy":                  {"volumes: {cachePolicy: \"\"}\n", "volumes.cachePolicy"},
		"a total beside a part":      {"volumes: {localDisk: {limits: {totalBytes: 1Mi, readBytes: 1Mi}}}\n", "volumes.localDisk.limits.totalBytes: contradicts the limits of reading and writing alone"},
		"requests likewise":          {"volumes: {localDisk: {limits: {totalOps: 1, writeOps: 1}}}\n", "volumes.localDisk.limits.totalOps: contradicts"},
		"parts on Cloud Hypervisor":  {"hypervisor: {driver: cloud-hypervisor}\nvolumes: {localDisk: {limits: {writeOps: 1}}}\n", "volumes.localDisk.limits.writeOps: Cloud Hypervisor bounds reads and writes together"},
		"policy on Cloud Hypervisor": {"hypervisor: {driver: cloud-hypervisor}\nvolumes: {cachePolicy: directsync}\n", "volumes.cachePolicy: Cloud Hypervisor cannot be made to flush each write"},
		"a daemon in no place":       {"volumes: {ceph: {storageDaemon: qsd}}\n", `volumes.ceph.storageDaemon: "qsd" is not an absolute path`},
		"nothing kept":               {"volumes: {keepDetached: 0s}\n", "volumes.keepDetached: 0s is below"},
	} {
		_, report := load(t, amd64(), header+c.body)
		if got := printed(t, report); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
	got, report := load(t, amd64(), header+"hypervisor: {driver: qemu}\nvolumes: {localDisk: {overlays: auto, limits: {writeOps: 5}}}\n", "--volume-cache-policy=directsync")
	if len(report.Problems) > 0 || got.Volumes.CachePolicy != "directsync" || got.Volumes.LocalDisk.Limits.WriteOps != 5 {
		t.Errorf("%+v, %v", got.Volumes, report.Problems)
	}
}
