// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"strings"
)

// applets are the names under which busybox is reachable in the guest.
const applets = `[ ash awk base64 basename blockdev cat chmod chown chroot clear cmp cp cut date dd df dirname dmesg du
echo env expr false find free ftpget grep halt head hexdump hostname hwclock id ifconfig ip kill killall less ln ls
lsmod lspci md5sum mkdir mknod mktemp more mount mv nc netstat nproc nslookup pidof ping ping6 poweroff printf ps pwd
readlink reboot reset rm rmdir rmmod route sed seq sh sha256sum sleep sort stat stty sync tail tar tee test time
timeout top touch tr traceroute true tty udhcpc umount uname uniq uptime vi wc wget which whoami xargs xxd yes zcat`

// dhcpScript applies a lease; busybox udhcpc calls it with the lease in the environment.
const dhcpScript = `#!/bin/sh
case "$1" in
deconfig) ip addr flush dev "$interface"; ip link set "$interface" up ;;
bound|renew)
	ip addr replace "$ip/$mask" dev "$interface"
	for r in $router; do ip route replace default via "$r" dev "$interface"; break; done
	: > /etc/resolv.conf
	for d in $dns; do echo "nameserver $d" >> /etc/resolv.conf; done ;;
esac
`

// initramfsParts is what goes into the archive.
type initramfsParts struct {
	init    []byte
	busybox []byte
	boot    []moduleFile
	vfat    []moduleFile
	agent   []guestFile
}

// collectModules resolves both module lists of the guest; more go to the first.
func collectModules(ctx context.Context, dir string, more []string) (boot, vfat []moduleFile, err error) {
	tree, err := openModuleTree(dir)
	if err != nil {
		return nil, nil, err
	}
	if boot, err = tree.resolve(ctx, append(bootModules(), required(more...)...)); err != nil {
		return nil, nil, err
	}
	if vfat, err = tree.resolve(ctx, vfatModules()); err != nil {
		return nil, nil, err
	}
	return boot, vfat, nil
}

// initramfs returns the compressed archive. Speed is preferred to size: the guest has to expand it under emulation.
func initramfs(parts initramfsParts) ([]byte, error) {
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	c := &cpioWriter{w: z}
	for _, dir := range []string{
		"bin", "dev", "dev/pts", "disk", "etc", "lib", "lib/modules", "proc", "root", "run", "sbin", "sys", "tmp",
	} {
		c.dir(dir)
	}
	// The kernel opens it for process 1 before anything is mounted.
	c.charDevice("dev/console", 0o600, 5, 1)
	c.file("init", 0o755, parts.init)
	c.file("bin/busybox", 0o755, parts.busybox)
	for _, name := range strings.Fields(applets) {
		c.symlink("bin/"+name, "busybox")
	}
	c.file("etc/passwd", 0o644, []byte("root:x:0:0:root:/:/bin/sh\n"))
	c.file("etc/group", 0o644, []byte("root:x:0:\n"))
	c.file("etc/udhcpc.sh", 0o755, []byte(dhcpScript))
	addModules(c, parts.boot, parts.vfat)
	addAgent(c, parts.agent)
	if err := c.close(); err != nil {
		return nil, fmt.Errorf("write initramfs: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("compress initramfs: %w", err)
	}
	return buf.Bytes(), nil
}

func addModules(c *cpioWriter, boot, vfat []moduleFile) {
	have := map[string]bool{}
	list := func(modules []moduleFile) []byte {
		var names strings.Builder
		for _, m := range modules {
			fmt.Fprintln(&names, m.name)
			if !have[m.name] {
				have[m.name] = true
				c.file("lib/modules/"+m.name, 0o644, m.data)
			}
		}
		return []byte(names.String())
	}
	c.file("lib/modules/boot.list", 0o644, list(boot))
	c.file("lib/modules/vfat.list", 0o644, list(vfat))
}

// writeFileSynced writes a file that is whole on disk when it returns.
func writeFileSynced(path string, data []byte) error {
	if err := os.WriteFile(path, data, 0o640); err != nil {
		return err
	}
	return syncFile(path)
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
