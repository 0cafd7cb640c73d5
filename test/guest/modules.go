// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// wantedModule is a kernel module the guest loads. An optional one may be absent from the kernel package.
type wantedModule struct {
	name     string
	optional bool
}

func required(names ...string) []wantedModule { return wanted(false, names) }
func optional(names ...string) []wantedModule { return wanted(true, names) }

func wanted(opt bool, names []string) []wantedModule {
	out := make([]wantedModule, 0, len(names))
	for _, n := range names {
		out = append(out, wantedModule{name: n, optional: opt})
	}
	return out
}

// bootModules are loaded at every boot.
func bootModules() []wantedModule {
	return append(required("virtio_pci", "virtio_blk", "virtio_net", "evdev", "qemu_fw_cfg"),
		optional("virtio_mmio", "button", "gpio_pl061", "gpio_keys", "virtio_console", "virtio_scsi", "sd_mod",
			"virtio-rng", "virtio_balloon", "virtio_mem", "vmw_vsock_virtio_transport", "af_packet")...)
}

// vfatModules are loaded only when there is a config disk: most guests boot faster without them.
func vfatModules() []wantedModule {
	return append(required("vfat"), optional("nls_cp437", "nls_ascii", "nls_iso8859-1", "nls_utf8")...)
}

// moduleTree is /lib/modules/VERSION of a kernel package. It works from the module files alone, because modules.dep
// is made by depmod at installation and is in no package.
type moduleTree struct {
	dir     string
	files   map[string]string // canonical name -> path
	builtin map[string]bool
	load    func(ctx context.Context, path string) ([]byte, error)
	cache   map[string]moduleFile
}

type moduleFile struct {
	name    string // file name in the initramfs
	data    []byte // decompressed
	depends []string
}

// openModuleTree indexes a directory.
func openModuleTree(dir string) (*moduleTree, error) {
	t := &moduleTree{
		dir: dir, files: map[string]string{}, builtin: map[string]bool{},
		load: readMaybeCompressed, cache: map[string]moduleFile{},
	}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, ok := moduleName(p); ok && d.Type().IsRegular() {
			t.files[name] = p
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("index kernel modules: %w", err)
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("index kernel modules: %w", err)
	}
	for _, line := range strings.Fields(string(builtin)) {
		if name, ok := moduleName(line); ok {
			t.builtin[name] = true
		}
	}
	return t, nil
}

// moduleName is the canonical name of a module file: the kernel treats - and _ as equal.
func moduleName(file string) (string, bool) {
	base := path.Base(filepath.ToSlash(file))
	stem, _, ok := strings.Cut(base, ".ko")
	return canonical(stem), ok
}

func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }

// resolve returns the wanted modules and all they depend on, in an order in which they load, without those that are
// built into the kernel.
func (t *moduleTree) resolve(ctx context.Context, want []wantedModule) ([]moduleFile, error) {
	var order []moduleFile
	done := map[string]bool{}
	for _, w := range want {
		err := t.visit(ctx, canonical(w.name), w.optional, done, &order, nil)
		if err != nil {
			return nil, fmt.Errorf("resolve kernel module %s: %w", w.name, err)
		}
	}
	return order, nil
}

func (t *moduleTree) visit(
	ctx context.Context, name string, optional bool, done map[string]bool, order *[]moduleFile, chain []string,
) error {
	if done[name] || t.builtin[name] {
		return nil
	}
	if slices.Contains(chain, name) {
		return fmt.Errorf("dependency cycle %s", strings.Join(append(chain, name), " -> "))
	}
	if _, ok := t.files[name]; !ok {
		if optional {
			return nil
		}
		return fmt.Errorf("module %s is neither in %s nor built in", name, t.dir)
	}
	m, err := t.read(ctx, name)
	if err != nil {
		return err
	}
	for _, dep := range m.depends {
		if err := t.visit(ctx, dep, false, done, order, append(chain, name)); err != nil {
			return err
		}
	}
	done[name] = true
	*order = append(*order, m)
	return nil
}

func (t *moduleTree) read(ctx context.Context, name string) (moduleFile, error) {
	if m, ok := t.cache[name]; ok {
		return m, nil
	}
	data, err := t.load(ctx, t.files[name])
	if err != nil {
		return moduleFile{}, err
	}
	info, err := modinfo(data)
	if err != nil {
		return moduleFile{}, fmt.Errorf("read %s: %w", t.files[name], err)
	}
	m := moduleFile{name: name + ".ko", data: data, depends: dependsOf(info)}
	t.cache[name] = m
	return m, nil
}

// modinfo returns the key=value strings of a module's .modinfo section.
func modinfo(object []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("no .modinfo section: not a kernel module")
	}
	raw, err := section.Data()
	if err != nil {
		return nil, err
	}
	return splitModinfo(raw), nil
}

func splitModinfo(raw []byte) []string {
	return strings.FieldsFunc(string(raw), func(r rune) bool { return r == 0 })
}

func dependsOf(info []string) []string {
	var deps []string
	for _, line := range info {
		list, ok := strings.CutPrefix(line, "depends=")
		if !ok {
			continue
		}
		for _, dep := range strings.Split(list, ",") {
			if dep != "" {
				deps = append(deps, canonical(dep))
			}
		}
	}
	return deps
}
