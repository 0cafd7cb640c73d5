// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTheAgentsChannelIsFoundByName(t *testing.T) {
	serial, vsock := t.TempDir(), t.TempDir()
	for path, content := range map[string]string{
		filepath.Join(serial, "class/virtio-ports/vport1p1/name"): "com.redhat.spice.0\n",
		filepath.Join(serial, "class/virtio-ports/vport2p1/name"): "org.qemu.guest_agent.0\n",
		// A guest may have both.
		filepath.Join(serial, "bus/virtio/drivers/vmw_vsock_virtio_transport/virtio3"): "",
		filepath.Join(vsock, "bus/virtio/drivers/vmw_vsock_virtio_transport/virtio3"):  "",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for sys, want := range map[string][2]string{
		serial:      {"virtio-serial", "/dev/vport2p1"},
		vsock:       {"vsock-listen", "4294967295:1024"},
		t.TempDir(): {"", ""},
	} {
		if method, path := agentChannel(sys); method != want[0] || path != want[1] {
			t.Errorf("channel %s %s, want %v", method, path, want)
		}
	}
}
