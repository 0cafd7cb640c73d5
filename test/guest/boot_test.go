// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

type args = map[string]any

func TestGuestSeesFwCfgDisksAndNICsAndCountsBootsOverARebootAndAPowerOff(t *testing.T) {
	files := builtGuest(t)
	root := rootDiskCopy(t, files)
	payload := []byte(`{"ignition":{"version":"3.4.0"}}`)
	ign := filepath.Join(t.TempDir(), "config.ign")
	if err := os.WriteFile(ign, payload, 0o600); err != nil {
		t.Fatal(err)
	}
	boot := func() *machine {
		return startMachine(t, files, "chp.dhcp", append(virtioDisk("root", root, "root-1", ""),
			"-fw_cfg", "name=opt/com.coreos/config,file="+ign,
			"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,mac=52:54:00:00:00:01,romfile=")...)
	}
	expectBoot := func(m *machine, count int) {
		t.Helper()
		m.expect("guest: booting",
			fmt.Sprintf("guest: ignition source=fw_cfg bytes=%d sha256=%x", len(payload), sha256.Sum256(payload)),
			"guest: ignition-data "+base64.StdEncoding.EncodeToString(payload),
			"guest: disk vda serial=root-1 bytes=33554432",
			"guest: net eth0 mac=52:54:00:00:00:01",
			fmt.Sprintf("guest: boot-count %d", count),
			"guest: ready login:")
	}
	m := boot()
	expectBoot(m, 1)
	m.expectEver("guest: dhcp eth0 ip=10.0.2.15/24")
	m.expect("Enter 'help' for a list of built-in commands.")
	m.typeLine("echo a$((40+2))b")
	m.expect("a42b")
	m.typeLine("exit")
	// Input typed while there is no shell is lost with the old session; its banner shows the new one.
	m.expect("Enter 'help' for a list of built-in commands.")
	m.typeLine("echo again$((1+1))")
	m.expect("again2")
	m.typeLine("reboot")
	m.expect("guest: reboot")
	expectBoot(m, 2)
	m.execute("system_powerdown", nil)
	m.expect("guest: power button")
	m.waitExit()

	m = boot()
	expectBoot(m, 3)
	m.typeLine("poweroff -f")
	m.waitExit()
}

func TestGuestFindsALargePayloadInTheSMBIOSStringsAndAnnouncesHotPlug(t *testing.T) {
	files := builtGuest(t)
	dir := t.TempDir()
	payload := bytes.Repeat([]byte("0123456789abcdef"), 1280) // 20 KiB
	oem := filepath.Join(dir, "oem")
	if err := os.WriteFile(oem, []byte("opt/com.coreos/config="+base64.StdEncoding.EncodeToString(payload)), 0o600); err != nil {
		t.Fatal(err)
	}
	hot := filepath.Join(dir, "hot.img")
	if err := os.WriteFile(hot, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	m := startMachine(t, files, "", "-smbios", "type=11,value=other string", "-smbios", "type=11,path="+oem,
		"-device", "pcie-root-port,id=rp1,chassis=1,slot=1", "-device", "pcie-root-port,id=rp2,chassis=2,slot=2")
	m.expect(fmt.Sprintf("guest: ignition source=smbios bytes=20480 sha256=%x", sha256.Sum256(payload)),
		"guest: boot-count none", "guest: ready login:")

	m.execute("blockdev-add", args{"driver": "raw", "node-name": "hot", "file": args{"driver": "file", "filename": hot}})
	m.execute("device_add", args{"driver": "virtio-blk-pci", "id": "d1", "drive": "hot", "serial": "hot-1", "bus": "rp1"})
	m.expect("guest: disk+ vda serial=hot-1 bytes=1048576")
	m.execute("block_resize", args{"node-name": "hot", "size": 2 << 20})
	m.expect("guest: resize vda bytes=2097152")
	m.execute("device_del", args{"id": "d1"})
	m.expect("guest: disk- vda")

	m.execute("netdev_add", args{"type": "user", "id": "n1"})
	m.execute("device_add", args{
		"driver": "virtio-net-pci", "id": "nic1", "netdev": "n1", "mac": "52:54:00:00:00:02", "bus": "rp2", "romfile": "",
	})
	m.expect("guest: net+ eth0 mac=52:54:00:00:00:02")
	m.execute("device_del", args{"id": "nic1"})
	m.expect("guest: net- eth0")
	m.typeLine("poweroff")
	m.expect("guest: power off")
	m.waitExit()
}

func TestGuestReadsTheConfigDiskAndCanIgnoreThePowerButton(t *testing.T) {
	files := builtGuest(t)
	payload := bytes.Repeat([]byte("x"), 3000)
	config := filepath.Join(t.TempDir(), "ignition.img")
	if err := os.WriteFile(config, fatImage("IGNITION", "CONFIG  IGN", payload), 0o600); err != nil {
		t.Fatal(err)
	}
	disks := append(virtioDisk("root", rootDiskCopy(t, files), "r", ""), virtioDisk("ign", config, "ignition", ",readonly=on")...)
	m := startMachine(t, files, "chp.ignore_power_button", disks...)
	m.expect(fmt.Sprintf("guest: ignition source=disk bytes=3000 sha256=%x", sha256.Sum256(payload)),
		"guest: ignition-data "+base64.StdEncoding.EncodeToString(payload),
		"guest: disk vda serial=r bytes=33554432",
		"guest: disk vdb serial=ignition bytes=1048576",
		"guest: boot-count 1", "guest: ready login:")
	m.execute("system_powerdown", nil)
	m.expect("guest: power button ignored")
	m.typeLine("echo still$((1+1))here")
	m.expect("still2here")
	m.execute("quit", nil)
	m.waitExit()
}

func TestGuestWithoutAnythingBootsFromTheDistributedKernel(t *testing.T) {
	files := builtGuest(t)
	files.VMLinux = files.Kernel
	m := startMachine(t, files, "")
	m.expect(fmt.Sprintf("guest: ignition source=none bytes=0 sha256=%x", sha256.Sum256(nil)),
		"guest: boot-count none", "guest: ready login:")
	m.execute("system_powerdown", nil)
	m.expect("guest: power button")
	m.waitExit()
}
