// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest/debian"
)

const (
	agentPackage = "qemu-guest-agent"
	// agentOS is how the guest names itself to those who ask its agent.
	agentOS = "ID=chp-guest\nNAME=\"Test guest\"\nPRETTY_NAME=\"Test guest of the cloud-hypervisor-provider\"\nVERSION_ID=1\n"
)

// guestFile is a file of the initramfs.
type guestFile struct {
	name string // without a leading slash
	mode uint32
	data []byte
}

// findAgent returns Debian's guest agent and all that it needs to run.
func findAgent(ctx context.Context, cache *debian.Cache, arch string) ([]guestFile, error) {
	pkg, err := cache.Tree(ctx, agentPackage)
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(filepath.Join(pkg.Tree, "usr/sbin/qemu-ga"))
	if err != nil {
		program, err = os.ReadFile(filepath.Join(pkg.Tree, "usr/bin/qemu-ga")) // newer packages
	}
	if err != nil {
		return nil, fmt.Errorf("find the guest agent: %w", err)
	}
	loader, needed, err := dynamic(program)
	if err != nil {
		return nil, fmt.Errorf("read the guest agent: %w", err)
	}
	l := &libraries{cache: cache, triplet: map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[arch]}
	l.trees = append(l.trees, pkg)
	files := []guestFile{{"usr/sbin/qemu-ga", 0o755, program}}
	have := map[string]bool{}
	for queue := append([]string{path.Base(loader)}, needed...); len(queue) > 0; queue = queue[1:] {
		name := queue[0]
		if have[name] {
			continue
		}
		have[name] = true
		data, err := l.find(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("find a library of the guest agent: %w", err)
		}
		target := path.Join("lib", l.triplet, name)
		if name == path.Base(loader) {
			target = strings.TrimPrefix(loader, "/")
		}
		files = append(files, guestFile{target, 0o755, data})
		_, more, err := dynamic(data)
		if err != nil {
			return nil, fmt.Errorf("read library %s: %w", name, err)
		}
		queue = append(queue, more...)
	}
	return files, nil
}

// dynamic returns the loader of a program, "" for a library, and the libraries that it needs.
func dynamic(object []byte) (loader string, needed []string, err error) {
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return "", nil, err
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		raw, err := io.ReadAll(p.Open())
		if err != nil {
			return "", nil, err
		}
		loader = strings.TrimRight(string(raw), "\x00")
	}
	needed, err = f.ImportedLibraries()
	return loader, needed, err
}

// libraries finds shared libraries in packages that others depend on, fetching as few as it can.
type libraries struct {
	cache   *debian.Cache
	triplet string
	trees   []debian.Package
	asked   int // how many of trees were asked for their dependencies
	wanted  []string
	missing []error
}

func (l *libraries) find(ctx context.Context, name string) ([]byte, error) {
	for i := 0; ; i++ {
		if i == len(l.trees) {
			more, err := l.fetch(ctx)
			if err != nil {
				return nil, err
			}
			if !more {
				return nil, errors.Join(append([]error{fmt.Errorf("%s is in no package that %s depends on", name, agentPackage)}, l.missing...)...)
			}
			if i == len(l.trees) {
				i--
				continue
			}
		}
		// A root, so that a link of the package that is absolute does not lead to the host's file.
		root, err := os.OpenRoot(l.trees[i].Tree)
		if err != nil {
			return nil, err
		}
		for _, dir := range []string{"lib", "usr/lib"} {
			if data, err := root.ReadFile(path.Join(dir, l.triplet, name)); err == nil {
				return data, root.Close()
			}
		}
		if err := root.Close(); err != nil {
			return nil, err
		}
	}
}

// fetch fetches one more package; false when there is none.
func (l *libraries) fetch(ctx context.Context) (more bool, err error) {
	for l.asked < len(l.trees) {
		depends, err := l.cache.Depends(ctx, l.trees[l.asked])
		if err != nil {
			return false, err
		}
		l.asked++
		for _, name := range libraryPackages(depends) {
			known := func(p debian.Package) bool { return p.Name == name }
			if !slices.ContainsFunc(l.trees, known) && !slices.Contains(l.wanted, name) {
				l.wanted = append(l.wanted, name)
			}
		}
	}
	if len(l.wanted) == 0 {
		return false, nil
	}
	pkg, err := l.cache.Tree(ctx, l.wanted[0])
	l.wanted = l.wanted[1:]
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err != nil: // it may be one that is not needed, or is a virtual one
		l.missing = append(l.missing, err)
	default:
		l.trees = append(l.trees, pkg)
	}
	return true, nil
}

// libraryPackages are the packages of a Depends field that look like libraries, the first of each choice.
func libraryPackages(depends string) []string {
	var names []string
	for _, one := range strings.Split(depends, ",") {
		name, _, _ := strings.Cut(one, "|")
		name, _, _ = strings.Cut(strings.TrimSpace(name), " ")
		name, _, _ = strings.Cut(name, ":")
		if strings.HasPrefix(name, "lib") || name == "zlib1g" {
			names = append(names, name)
		}
	}
	return names
}

// addAgent adds the agent, and the guest's process 1 as the program that the agent calls to shut down.
func addAgent(c *cpioWriter, files []guestFile) {
	if len(files) == 0 {
		return
	}
	made := map[string]bool{"lib": true} // every guest has it
	for _, f := range files {
		for _, dir := range parents(f.name) {
			if !made[dir] {
				made[dir] = true
				c.dir(dir)
			}
		}
		c.file(f.name, f.mode, f.data)
	}
	c.symlink("sbin/shutdown", "../init")
	c.file("etc/os-release", 0o644, []byte(agentOS))
}
