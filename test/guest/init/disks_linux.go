// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	rootMount   = "/disk"
	configMount = "/run/ignition"
)

// findDisk returns the device of the first whole disk whose label, as read by label, is want.
func findDisk(disks []disk, want string, label func(f *os.File) string) (device string, found bool) {
	for _, d := range disks {
		path := filepath.Join("/dev", d.name)
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		got := label(f)
		f.Close()
		if got == want {
			return path, true
		}
	}
	return "", false
}

func (g *guest) ignitionFromDisk() ([]byte, bool) {
	device, ok := findDisk(scanDisks("/sys"), configLabel, func(f *os.File) string { return fatLabel(f) })
	if !ok {
		return nil, false
	}
	g.loadModules("/lib/modules/vfat.list")
	payload, err := readConfigDisk(device)
	if err != nil {
		g.fail("config disk "+device, err)
		return nil, false
	}
	return payload, true
}

func readConfigDisk(device string) ([]byte, error) {
	if err := os.MkdirAll(configMount, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount(device, configMount, "vfat", unix.MS_RDONLY, ""); err != nil {
		return nil, fmt.Errorf("mount: %w", err)
	}
	payload, err := os.ReadFile(filepath.Join(configMount, configFile))
	return payload, errors.Join(err, unix.Unmount(configMount, 0))
}

// countBoot raises the counter on the root disk and makes it durable before it is announced, so that a counter seen
// on the console is one that the next boot starts from.
func (g *guest) countBoot(disks []disk) {
	device, ok := findDisk(disks, rootLabel, func(f *os.File) string { return ext4Label(f) })
	if !ok {
		g.say("guest: boot-count none")
		return
	}
	n, err := g.raiseBootCount(device)
	if err != nil {
		g.fail("boot count on "+device, err)
		return
	}
	g.say(fmt.Sprintf("guest: boot-count %d", n))
}

func (g *guest) raiseBootCount(device string) (int, error) {
	if err := os.MkdirAll(rootMount, 0o755); err != nil {
		return 0, err
	}
	if err := unix.Mount(device, rootMount, "ext4", unix.MS_NOATIME, ""); err != nil {
		return 0, fmt.Errorf("mount: %w", err)
	}
	g.rootMounted = true
	path := filepath.Join(rootMount, "boot-count")
	n := 0
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return 0, err
	default:
		if n, err = strconv.Atoi(strings.TrimSpace(string(old))); err != nil {
			return 0, err
		}
	}
	n++
	return n, writeDurably(path, strconv.Itoa(n)+"\n")
}

func writeDurably(path, text string) error {
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
