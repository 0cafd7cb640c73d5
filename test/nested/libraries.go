// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package nested

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// libraryDirs are where a dynamic loader looks without being told, in its order, for the layouts of Debian and others.
func libraryDirs() []string {
	return []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"}
}

// Libraries returns the dynamic loader of a program and all shared libraries it needs, by the paths under which they
// are looked for; none for a static program.
func Libraries(program string) ([]string, error) {
	var found []string
	seen := map[string]bool{}
	open := []string{program}
	for len(open) > 0 {
		next := open[0]
		open = open[1:]
		needed, dirs, err := needs(next)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", next, err)
		}
		for _, name := range needed {
			if seen[filepath.Base(name)] {
				continue
			}
			seen[filepath.Base(name)] = true
			path, err := locate(name, append(dirs, libraryDirs()...))
			if err != nil {
				return nil, fmt.Errorf("%s needs %s: %w", next, name, err)
			}
			found, open = append(found, path), append(open, path)
		}
	}
	return found, nil
}

// needs lists the loader, by its path, and the libraries, by their names, that an ELF file asks for, and the directories
// of its own in which they are looked for first.
func needs(path string) (names, dirs []string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		raw, err := io.ReadAll(p.Open())
		if err != nil {
			return nil, nil, err
		}
		names = append(names, string(bytes.TrimRight(raw, "\x00")))
	}
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return nil, nil, err
	}
	runPaths, err := f.DynString(elf.DT_RUNPATH)
	for _, list := range runPaths {
		dirs = append(dirs, filepath.SplitList(list)...)
	}
	return append(names, libraries...), dirs, err
}

func locate(name string, dirs []string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("not in any of %v", dirs)
}
