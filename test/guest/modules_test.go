// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// moduleObject is an ELF object with nothing but a .modinfo section.
func moduleObject(t *testing.T, info ...string) []byte {
	t.Helper()
	const headerLen, sectionLen = 64, 64
	names := "\x00.modinfo\x00.shstrtab\x00"
	data := strings.Join(info, "\x00") + "\x00"
	var buf bytes.Buffer
	put := func(v any) {
		if err := binary.Write(&buf, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	header := elf.Header64{
		Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Shoff: uint64(headerLen + len(data) + len(names)), Ehsize: headerLen, Shentsize: sectionLen, Shnum: 3, Shstrndx: 2,
	}
	copy(header.Ident[:], "\x7fELF\x02\x01\x01")
	put(header)
	buf.WriteString(data + names)
	put(elf.Section64{})
	put(elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: headerLen, Size: uint64(len(data)), Addralign: 1})
	put(elf.Section64{
		Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(headerLen + len(data)), Size: uint64(len(names)), Addralign: 1,
	})
	return buf.Bytes()
}

func moduleDir(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestModulesAreResolvedInLoadOrder(t *testing.T) {
	dir := moduleDir(t, map[string][]byte{
		"kernel/net/virtio_net.ko":   moduleObject(t, "license=GPL", "depends=virtio,net-failover"),
		"kernel/net/net_failover.ko": moduleObject(t, "depends=failover,virtio"),
		"kernel/net/failover.ko":     moduleObject(t, "depends="),
		"kernel/virtio/virtio.ko":    moduleObject(t, "depends=ring,bus"),
		"kernel/virtio/ring.ko":      moduleObject(t),
		"kernel/a.ko":                moduleObject(t, "depends=b"),
		"kernel/b.ko":                moduleObject(t, "depends=a"),
		"kernel/orphan.ko":           moduleObject(t, "depends=nowhere"),
		"kernel/broken.ko":           []byte("not an object"),
		"modules.builtin":            []byte("kernel/drivers/bus.ko\n"),
	})
	for name, c := range map[string]struct {
		want    []wantedModule
		order   []string
		failing string
	}{
		"dependencies come first and once": {
			required("virtio_net", "virtio"), []string{"ring.ko", "virtio.ko", "failover.ko", "net_failover.ko", "virtio_net.ko"}, "",
		},
		"dash and underscore are equal":                {required("net-failover"), []string{"failover.ko", "ring.ko", "virtio.ko", "net_failover.ko"}, ""},
		"what is built in is left out":                 {required("bus"), nil, ""},
		"an optional module may be absent":             {optional("absent", "ring"), []string{"ring.ko"}, ""},
		"a required module may not be absent":          {required("absent"), nil, "neither in"},
		"an absent dependency is an error":             {optional("orphan"), nil, "module nowhere"},
		"a cycle is an error":                          {required("a"), nil, "cycle a -> b -> a"},
		"a file that is no module is an error":         {required("broken"), nil, "broken.ko"},
		"nothing wanted gives nothing":                 {nil, nil, ""},
		"an optional module that is there is resolved": {optional("virtio"), []string{"ring.ko", "virtio.ko"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tree, err := openModuleTree(dir)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tree.resolve(t.Context(), c.want)
			if c.failing != "" {
				if err == nil || !strings.Contains(err.Error(), c.failing) {
					t.Fatalf("error %v, want one with %q", err, c.failing)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var order []string
			for _, m := range got {
				order = append(order, m.name)
			}
			if diff := cmp.Diff(c.order, order); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestACompressedModuleIsRead(t *testing.T) {
	object := moduleObject(t, "depends=")
	for _, tool := range []string{"xz", "zstd"} {
		t.Run(tool, func(t *testing.T) {
			packed := compressWith(t, tool, object)
			dir := moduleDir(t, map[string][]byte{"kernel/m.ko." + tool: packed})
			tree, err := openModuleTree(dir)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tree.resolve(context.Background(), required("m"))
			if err != nil || len(got) != 1 || got[0].name != "m.ko" || !bytes.Equal(got[0].data, object) {
				t.Errorf("resolved %d modules, %v", len(got), err)
			}
		})
	}
}
