// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
)

var update = flag.Bool("update", false, "write the golden files anew")

const gib = 1 << 30

// goodServer is a production server with everything in place; the cases below break it.
func goodServer() Options {
	elf := append([]byte("\x7fELF"), make([]byte, 4<<20)...)
	return Options{
		StateDir: "/var/lib/cloud-hypervisor-provider", RuntimeDir: "/run/cloud-hypervisor-provider",
		SocketPath: "/run/iri-machineprovider.sock",
		Probes: Probes{
			Facts: func() (host.Facts, error) {
				return host.Facts{
					OS: "linux", Arch: "amd64", Hostname: "node-1", KernelRelease: "6.12.0", CPUs: 64,
					MemoryTotal: 256 * gib, MemoryAvailable: 200 * gib, CgroupVersion: 2, Systemd: true,
					HugePages: []host.HugePages{{SizeBytes: 2 << 20, Total: 1024, Free: 512}},
					NUMANodes: []host.NUMANode{{ID: 0}, {ID: 1}},
				}, nil
			},
			Finder: host.Finder{
				OS: "linux", Arch: "amd64",
				FS: fstest.MapFS{
					"usr/bin/cloud-hypervisor":                {Mode: 0o755},
					"usr/share/cloudhv-efi-x86-64/CLOUDHV.fd": {Data: elf},
				},
				Getenv:   func(string) string { return "" },
				LookPath: lookPath("cloud-hypervisor"),
				Version: func(_ context.Context, path string) (string, error) {
					if strings.Contains(path, "qemu") {
						return "QEMU emulator version 10.0.2\n", nil
					}
					return "cloud-hypervisor v53.0\n", nil
				},
				KVM: func(context.Context) host.KVM {
					return host.KVM{Usable: true, Reason: "a 64-bit test guest ran correctly in 4.2ms", Took: 4200 * time.Microsecond}
				},
				HVF: func() (bool, string) { return true, "sysctl kern.hv_support is 1" },
			},
			Storage: func(_ context.Context, dir string) (host.Storage, error) {
				ok := host.Trial{OK: true, Took: 900 * time.Microsecond}
				return host.Storage{
					Path: dir, Probed: dir, Filesystem: "xfs", TotalBytes: 1000 * gib, FreeBytes: 640 * gib,
					Reflink: ok, DirectIO: ok, Fsync: ok,
				}, nil
			},
			Dir: func(path string) (Dir, error) {
				return Dir{Nearest: path, Exists: true, Mode: os.ModeDir | 0o750, Writable: true}, nil
			},
			UID: func() int { return 0 },
		},
	}
}

func lookPath(have ...string) func(string) (string, error) {
	return func(name string) (string, error) {
		if slices.Contains(have, name) {
			return "/usr/bin/" + name, nil
		}
		return "", exec.ErrNotFound
	}
}

// qemuOnly makes it the laptop of a developer: QEMU without KVM, no systemd, a small full disk.
func qemuOnly(o *Options) {
	o.Probes.Facts = func() (host.Facts, error) {
		return host.Facts{
			OS: "linux", Arch: "amd64", Hostname: "laptop", KernelRelease: "6.1.0", CPUs: 1,
			MemoryTotal: 4 * gib, MemoryAvailable: gib / 2, CgroupVersion: 1,
		}, nil
	}
	flash := make([]byte, 1<<20)
	o.Probes.Finder.FS = fstest.MapFS{
		"usr/bin/qemu-system-x86_64":     {Mode: 0o755},
		"usr/share/OVMF/OVMF_CODE_4M.fd": {Data: flash},
		"usr/share/OVMF/OVMF_VARS_4M.fd": {Data: flash},
	}
	o.Probes.Finder.LookPath = lookPath("qemu-system-x86_64")
	o.Probes.Finder.KVM = noKVM
	o.Probes.Storage = func(_ context.Context, dir string) (host.Storage, error) {
		return host.Storage{
			Path: dir, Probed: "/var/lib", Filesystem: "ext4", TotalBytes: 20 * gib, FreeBytes: 5 * gib, FreeFiles: 100000,
			Reflink:  host.Trial{Reason: "the file system cannot share blocks between files"},
			DirectIO: host.Trial{OK: true}, Fsync: host.Trial{OK: true, Took: 250 * time.Millisecond},
		}, nil
	}
	o.Probes.Dir = func(string) (Dir, error) { return Dir{Nearest: "/var/lib", Writable: true}, nil }
}

func noKVM(context.Context) host.KVM {
	return host.KVM{Reason: "there is no /dev/kvm: virtualisation is off in the firmware, the kvm module is not loaded, or " +
		"this is a virtual machine or container without it"}
}

func nothing(o *Options) {
	o.Probes.Finder.FS = fstest.MapFS{}
	o.Probes.Finder.LookPath = lookPath()
}

func TestGoldenReports(t *testing.T) {
	for name, breakIt := range map[string]func(*Options){
		"good-server": func(*Options) {},
		"qemu-only":   qemuOnly,
		"nothing":     nothing,
		"configured-but-missing": func(o *Options) {
			nothing(o)
			o.Hypervisor = host.Wants{Hypervisor: "cloud-hypervisor", CloudHypervisorBinary: "/opt/ch", CloudHypervisorFirmware: "/opt/fw"}
			o.HugePages = gib
			o.Probes.Finder.KVM = noKVM
			o.RuntimeDir = "/run/" + strings.Repeat("x", 60)
			o.Probes.UID = func() int { return 1000 }
			o.Probes.Dir = func(string) (Dir, error) { return Dir{Nearest: "/run", Mode: os.ModeDir | 0o755}, nil }
			o.Probes.Storage = func(_ context.Context, dir string) (host.Storage, error) {
				return host.Storage{Path: dir, Probed: "/var/lib", Filesystem: "ext4", TotalBytes: 20 * gib, FreeBytes: gib / 2},
					errors.New("write into /var/lib: permission denied")
			}
		},
		"macos": func(o *Options) {
			qemuOnly(o)
			o.Probes.Facts = func() (host.Facts, error) {
				return host.Facts{OS: "darwin", Arch: "arm64", Hostname: "mac", KernelRelease: "24.0.0", CPUs: 8, MemoryTotal: 16 * gib}, nil
			}
			flash := make([]byte, 1<<20)
			o.Probes.Finder.OS, o.Probes.Finder.Arch = "darwin", "arm64"
			o.Probes.Finder.LookPath = lookPath()
			o.Probes.Finder.FS = fstest.MapFS{
				"opt/homebrew/bin/qemu-system-aarch64":         {Mode: 0o755},
				"opt/homebrew/share/qemu/edk2-aarch64-code.fd": {Data: flash},
				"opt/homebrew/share/qemu/edk2-arm-vars.fd":     {Data: flash},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := goodServer()
			breakIt(&o)
			r := Run(t.Context(), o)
			var text, doc bytes.Buffer
			if err := errors.Join(r.WriteText(&text, TextOptions{}), r.WriteJSON(&doc)); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", text.Bytes())
			golden(t, name+".json", doc.Bytes())
			checkStructure(t, r)
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got; go test ./internal/host/check -update writes it anew):\n%s", path, diff)
	}
}

// checkStructure asserts what holds for every report.
func checkStructure(t *testing.T, r Report) {
	t.Helper()
	seen := map[string]bool{}
	for _, i := range r.Items {
		if seen[i.Name] {
			t.Errorf("%s is reported twice", i.Name)
		}
		seen[i.Name] = true
		if i.Detail == "" || strings.ContainsAny(i.Detail+i.Hint, "\n\t") {
			t.Errorf("%s: detail %q, hint %q", i.Name, i.Detail, i.Hint)
		}
		switch i.Status {
		case OK:
			if i.Hint != "" {
				t.Errorf("%s is ok but has the hint %q", i.Name, i.Hint)
			}
		case Warn, Fail:
			if i.Hint == "" {
				t.Errorf("%s does not say what to do", i.Name)
			}
		default:
			t.Errorf("%s has status %q", i.Name, i.Status)
		}
	}
	for _, name := range []string{"server", "qemu", "hypervisor", "state-directory", "runtime-directory", "socket-path"} {
		if !seen[name] {
			t.Errorf("%s is not in the report", name)
		}
	}
	var doc struct {
		OK    *bool  `json:"ok"`
		Items []Item `json:"items"`
	}
	var buf bytes.Buffer
	if err := r.WriteJSON(&buf); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(buf.Bytes(), &doc); err != nil || doc.OK == nil {
		t.Fatalf("JSON: %v", err)
	}
	if diff := cmp.Diff(r.Items, doc.Items); diff != "" {
		t.Errorf("items in JSON (-want +got):\n%s", diff)
	}
	if *doc.OK != (r.ExitCode(false) == 0) {
		t.Errorf("ok is %v, exit code %d", *doc.OK, r.ExitCode(false))
	}
}

func TestThisServer(t *testing.T) {
	dir := t.TempDir()
	r := Run(t.Context(), Options{StateDir: dir, RuntimeDir: "/tmp", SocketPath: "/tmp/iri.sock"})
	checkStructure(t, r)
	var text strings.Builder
	if err := r.WriteText(&text, TextOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", text.String())
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSingleItems(t *testing.T) {
	for name, tc := range map[string]struct {
		breakIt func(*Options)
		item    string
		status  Status
		detail  string
	}{
		"hugepages that are asked for and there are fine": {
			func(o *Options) { o.HugePages = 2 << 20 }, "hugepages", OK, "512 of 1024 free of 2 MiB each",
		},
		"hugepages of the wrong size fail": {func(o *Options) { o.HugePages = gib }, "hugepages", Fail, "pages of 1 GiB"},
		"an old Cloud Hypervisor is explained": {func(o *Options) {
			o.Probes.Finder.Version = func(context.Context, string) (string, error) { return "cloud-hypervisor v40.0", nil }
		}, "cloud-hypervisor", Fail, "/usr/bin/cloud-hypervisor: version 40.0 is too old, 52.0 is needed"},
		"a Cloud Hypervisor at the floor is a warning": {func(o *Options) {
			o.Probes.Finder.Version = func(context.Context, string) (string, error) { return "cloud-hypervisor v52.0", nil }
		}, "cloud-hypervisor", Warn, "52.0 at /usr/bin/cloud-hypervisor"},
		"an unused QEMU is not missed":      {func(*Options) {}, "qemu", OK, "not needed, as cloud-hypervisor is used"},
		"tcg as configured is no complaint": {func(o *Options) { qemuOnly(o); o.Hypervisor.Accelerator = "tcg" }, "qemu-accelerator", OK, "as configured"},
		"kvm as configured must work":       {func(o *Options) { qemuOnly(o); o.Hypervisor.Accelerator = "kvm" }, "kvm", Fail, "there is no /dev/kvm"},
		"and without it no hypervisor can be used": {
			func(o *Options) { qemuOnly(o); o.Hypervisor.Accelerator = "kvm" }, "hypervisor", Fail,
			"none can be used: accelerator kvm is configured and cannot be had",
		},
		"a state directory others may enter is a warning": {func(o *Options) {
			o.Probes.Dir = func(p string) (Dir, error) {
				return Dir{Nearest: p, Exists: true, Mode: os.ModeDir | 0o755, Writable: true}, nil
			}
		}, "state-directory", Warn, "mode 0755"},
		"a state directory of somebody else is a warning": {func(o *Options) {
			o.Probes.Dir = func(p string) (Dir, error) {
				return Dir{Nearest: p, Exists: true, Mode: os.ModeDir | 0o750, UID: 7, Writable: true}, nil
			}
		}, "state-directory", Warn, "belongs to user 7"},
		"a long IRI socket path fails": {func(o *Options) { o.SocketPath = "/" + strings.Repeat("x", 107) }, "socket-path", Fail, "shorten it by 1"},
		"a file system that loses data fails": {func(o *Options) {
			o.Probes.Storage = func(context.Context, string) (host.Storage, error) {
				return host.Storage{TotalBytes: 1 << 40, FreeBytes: 1 << 40, Fsync: host.Trial{Reason: "input/output error"}}, nil
			}
		}, "fsync", Fail, "input/output error"},
		"facts that cannot be read fail": {func(o *Options) {
			o.Probes.Facts = func() (host.Facts, error) { return host.Facts{}, errors.New("read memory size: no /proc") }
		}, "server", Fail, "no /proc"},
	} {
		t.Run(name, func(t *testing.T) {
			o := goodServer()
			tc.breakIt(&o)
			r := Run(t.Context(), o)
			checkStructure(t, r)
			at := slices.IndexFunc(r.Items, func(i Item) bool { return i.Name == tc.item })
			if at < 0 {
				t.Fatalf("no item %s", tc.item)
			}
			if got := r.Items[at]; got.Status != tc.status || !strings.Contains(got.Detail, tc.detail) {
				t.Errorf("got %+v, want %s with %q", got, tc.status, tc.detail)
			}
		})
	}
}

func TestExitCode(t *testing.T) {
	for name, tc := range map[string]struct {
		statuses      []Status
		plain, strict int
	}{
		"all is well":        {[]Status{OK, OK}, 0, 0},
		"a warning":          {[]Status{OK, Warn}, 0, 1},
		"a failure":          {[]Status{Fail, OK}, 1, 1},
		"a failure and more": {[]Status{Fail, Warn}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var r Report
			for _, s := range tc.statuses {
				r.Items = append(r.Items, Item{Status: s})
			}
			if got := []int{r.ExitCode(false), r.ExitCode(true)}; got[0] != tc.plain || got[1] != tc.strict {
				t.Errorf("got %v, want %d and %d", got, tc.plain, tc.strict)
			}
		})
	}
}

func TestColourMarksTheStatusOnlyAndKeepsTheColumns(t *testing.T) {
	r := Report{Items: []Item{{"a", OK, "fine", ""}, {"bb", Warn, "so so", "do it"}, {"c", Fail, "bad", "mend it"}}}
	var plain, colour strings.Builder
	if err := errors.Join(r.WriteText(&plain, TextOptions{}), r.WriteText(&colour, TextOptions{Color: true})); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(plain.String(), "\x1b") || strings.Count(colour.String(), reset) != 3 {
		t.Errorf("plain %q, colour %q", plain.String(), colour.String())
	}
	stripped := strings.NewReplacer(red, "", yellow, "", green, "", reset, "").Replace(colour.String())
	if diff := cmp.Diff(plain.String(), stripped); diff != "" {
		t.Errorf("layout differs (-plain +colour):\n%s", diff)
	}
}

func TestAFileIsNotColoured(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if Color(f) {
		t.Error("a plain file would be coloured")
	}
}

func TestLookAtDir(t *testing.T) {
	dir := t.TempDir()
	got, err := lookAtDir(filepath.Join(dir, "a", "b"))
	if err != nil || got.Nearest != dir || got.Exists || !got.Writable || got.UID != os.Geteuid() {
		t.Errorf("missing directory: %+v, %v", got, err)
	}
	if got, err = lookAtDir(dir); err != nil || !got.Exists {
		t.Errorf("directory: %+v, %v", got, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "below")} {
		if _, err := lookAtDir(path); err == nil {
			t.Errorf("%s was taken for a directory", path)
		}
	}
}

func TestSizes(t *testing.T) {
	for bytes, want := range map[uint64]string{
		0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 2 << 20: "2 MiB", 1 << 30: "1 GiB", 1536 << 20: "1.5 GiB",
		1<<64 - 1: "16 EiB",
	} {
		if got := size(bytes); got != want {
			t.Errorf("%d: got %q, want %q", bytes, got, want)
		}
	}
}
