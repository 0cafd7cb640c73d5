// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// Overlay is a second archive of files for a guest. The kernel unpacks it over the guest's own initramfs, so that a
// guest can carry what a test needs without being built anew. Directories above a file are made.
type Overlay struct {
	entries []cpioEntry
	sources map[string]string // name -> file on this host
}

// File adds a copy of a file of this host under a path in the guest.
func (o *Overlay) File(name, source string, perm os.FileMode) {
	if o.sources == nil {
		o.sources = map[string]string{}
	}
	name = clean(name)
	o.sources[name] = source
	o.entries = append(o.entries, cpioEntry{name: name, mode: modeRegular | uint32(perm.Perm())})
}

// Text adds a file with the content.
func (o *Overlay) Text(name, content string, perm os.FileMode) {
	o.entries = append(o.entries, cpioEntry{name: clean(name), mode: modeRegular | uint32(perm.Perm()), data: []byte(content)})
}

// Append writes the guest's initramfs and the overlay behind it, as the kernel takes them.
func (o *Overlay) Append(w io.Writer, initramfs string) error {
	first, err := os.ReadFile(initramfs)
	if err != nil {
		return err
	}
	c := &cpioWriter{w: w}
	c.write(first)
	c.pad() // an archive that is not compressed has to begin at a multiple of four bytes
	made := map[string]bool{}
	for _, e := range o.entries {
		for _, dir := range parents(e.name) {
			if !made[dir] {
				made[dir] = true
				c.dir(dir)
			}
		}
		if source, ok := o.sources[e.name]; ok {
			if e.data, err = os.ReadFile(source); err != nil {
				return fmt.Errorf("add %s: %w", e.name, err)
			}
		}
		c.add(e)
	}
	return c.close()
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// parents lists the directories above a path, outermost first.
func parents(name string) []string {
	var dirs []string
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	return dirs
}
