// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/nested"
)

// unitDir is where systemd keeps the units it brings along; libDir is where this package puts its programs.
const (
	libDir  = "/usr/lib/systemd"
	unitDir = libDir + "/system"
)

// ErrMissing says that this host lacks a program of which the machine is made.
var ErrMissing = errors.New("not on this host")

// programs are what a machine with systemd and a bus needs; required ones first, those of some versions after them.
var programs = struct{ required, optional []string }{
	required: []string{
		libDir + "/systemd", libDir + "/systemd-journald", libDir + "/systemd-shutdown",
		"/usr/bin/systemctl", "/usr/bin/journalctl", "/usr/bin/dbus-daemon",
	},
	optional: []string{libDir + "/systemd-executor", libDir + "/systemd-cgroups-agent"},
}

// units are those of systemd's and the bus' own that are used.
var units = []string{
	"basic.target", "sysinit.target", "sockets.target", "timers.target", "paths.target", "slices.target",
	"local-fs.target", "local-fs-pre.target", "network.target", "multi-user.target", "shutdown.target", "umount.target",
	"systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket",
	"dbus.service", "dbus.socket",
}

// texts are the files that no package has.
var texts = map[string]string{
	"/etc/machine-id": "0123456789abcdef0123456789abcdef\n",
	"/etc/passwd":     "root:x:0:0:root:/root:/bin/sh\nmessagebus:x:100:100::/nonexistent:/bin/false\n",
	"/etc/group":      "root:x:0:\nmessagebus:x:100:\nkvm:x:101:\niri:x:102:\n",
	// Process 1 until systemd is. Each module is loaded once all it needs is.
	initPath: `#!/bin/sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
for m in $(/bin/busybox cat /lib/modules/boot.list); do /bin/busybox insmod /lib/modules/$m; done
/bin/busybox mkdir -p /var/lib /var/log
/bin/busybox ln -s /run /var/run
/bin/busybox ln -s ` + libDir + ` /lib/systemd
exec ` + libDir + `/systemd
`,
	"/etc/systemd/system/default.target": `[Unit]
Description=What the test wants
Requires=multi-user.target nested.service
After=multi-user.target
AllowIsolate=yes
`,
	"/etc/systemd/system/nested.service": `[Unit]
Description=The test
Requires=dbus.service systemd-journald.service
After=dbus.service systemd-journald.service

[Service]
Type=oneshot
ExecStart=/bin/sh ` + nested.Script + `
TimeoutStartSec=infinity
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
`,
}

const initPath = "/sbin/init-systemd"

// Root collects the files of a machine whose process 1 is systemd: path there -> path here. Texts are written into dir.
// The error is ErrMissing, with the path, if this host lacks one.
func Root(dir string) (map[string]string, error) {
	files := map[string]string{}
	for i, path := range append(append([]string{}, programs.required...), programs.optional...) {
		_, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) && i >= len(programs.required) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, errors.Join(ErrMissing, err))
		}
		if err := Program(files, path); err != nil {
			return nil, err
		}
	}
	for _, name := range units {
		path := filepath.Join(unitDir, name)
		if _, err := os.Stat(path); err == nil { // some versions have fewer
			files[path] = path
		}
	}
	for _, pattern := range []string{"/usr/share/dbus-1/system.conf", "/usr/share/dbus-1/system.d/org.freedesktop.systemd1.conf"} {
		if _, err := os.Stat(pattern); err != nil {
			return nil, fmt.Errorf("%s: %w", pattern, errors.Join(ErrMissing, err))
		}
		files[pattern] = pattern
	}
	n := 0
	for path, text := range texts {
		source := filepath.Join(dir, fmt.Sprintf("text%d", n))
		n++
		perm := os.FileMode(0o644)
		if path == initPath {
			perm = 0o755
		}
		if err := os.WriteFile(source, []byte(text), perm); err != nil {
			return nil, err
		}
		files[path] = source
	}
	return files, nil
}

// Program adds a program of this host with all libraries it needs.
func Program(files map[string]string, path string) error {
	libraries, err := nested.Libraries(path)
	if err != nil {
		return fmt.Errorf("find the libraries of %s: %w", path, err)
	}
	for _, l := range append(libraries, path) {
		files[l] = l
	}
	return nil
}
