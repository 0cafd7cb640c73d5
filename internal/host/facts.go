// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Facts is what is known about the server without trying anything.
type Facts struct {
	OS              string      `json:"os"`   // GOOS
	Arch            string      `json:"arch"` // GOARCH, such as "amd64"
	Hostname        string      `json:"hostname"`
	KernelRelease   string      `json:"kernelRelease"`
	CPUs            int         `json:"cpus"`            // logical processors online on the host, never below 1
	MemoryTotal     uint64      `json:"memoryTotal"`     // bytes
	MemoryAvailable uint64      `json:"memoryAvailable"` // bytes that can be used without swapping; 0 if unknown
	HugePages       []HugePages `json:"hugePages,omitempty"`
	NUMANodes       []NUMANode  `json:"numaNodes,omitempty"` // sorted by ID; empty where the kernel does not tell
	CgroupVersion   int         `json:"cgroupVersion"`       // 2, 1 (also hybrid), 0 if none is mounted
	Systemd         bool        `json:"systemd"`             // systemd runs as process 1
}

// HugePages is one pool of hugepages of one size.
type HugePages struct {
	SizeBytes uint64 `json:"sizeBytes"`
	Total     uint64 `json:"total"` // pages
	Free      uint64 `json:"free"`  // pages
}

// NUMANode is one memory node.
type NUMANode struct {
	ID          int    `json:"id"`
	CPUs        int    `json:"cpus"`
	MemoryBytes uint64 `json:"memoryBytes"`
}

// Uname is the part of uname(2) that is used.
type Uname struct {
	Hostname, Release string
}

// Source says where facts are read from. The zero value reads this server; tests put in their own.
type Source struct {
	FS     fs.FS                  // root with proc/ and sys/; nil: the real root
	Uname  func() (Uname, error)  // nil: uname(2)
	Memory func() (uint64, error) // total bytes where there is no proc/meminfo; nil: the operating system
	NumCPU func() int             // last resort for the number of processors; nil: runtime.NumCPU
	Arch   string                 // empty: GOARCH
}

func (s Source) withDefaults() Source {
	if s.FS == nil {
		s.FS = os.DirFS("/")
	}
	if s.Uname == nil {
		s.Uname = platformUname
	}
	if s.Memory == nil {
		s.Memory = platformMemory
	}
	if s.NumCPU == nil {
		s.NumCPU = runtime.NumCPU
	}
	if s.Arch == "" {
		s.Arch = runtime.GOARCH
	}
	return s
}

// ReadFacts reads the facts. Memory and uname are required; what else the kernel does not tell stays zero.
func ReadFacts(src Source) (Facts, error) {
	src = src.withDefaults()
	un, err := src.Uname()
	if err != nil {
		return Facts{}, fmt.Errorf("read host name and kernel release: %w", err)
	}
	f := Facts{OS: runtime.GOOS, Arch: src.Arch, Hostname: un.Hostname, KernelRelease: un.Release}
	if f.MemoryTotal, f.MemoryAvailable, err = readMemory(src); err != nil {
		return Facts{}, fmt.Errorf("read memory size: %w", err)
	}
	f.CPUs = countCPUs(src)
	f.HugePages = readHugePages(src.FS)
	f.NUMANodes = readNUMA(src.FS)
	f.CgroupVersion = cgroupVersion(src.FS)
	f.Systemd = systemdIsInit(src.FS)
	return f, nil
}

func readMemory(src Source) (total, available uint64, err error) {
	data, err := fs.ReadFile(src.FS, "proc/meminfo")
	if errors.Is(err, fs.ErrNotExist) {
		total, err = src.Memory()
		return total, 0, err
	}
	if err != nil {
		return 0, 0, err
	}
	total, ok := kibibytes(string(data), "MemTotal:")
	if !ok || total == 0 {
		return 0, 0, errors.New("no MemTotal in /proc/meminfo")
	}
	available, ok = kibibytes(string(data), "MemAvailable:")
	if !ok {
		available, _ = kibibytes(string(data), "MemFree:") // kernels before 3.14
	}
	return total, available, nil
}

// kibibytes finds "<key> <n> kB" in text, where the key may follow a prefix such as "Node 0 ", and returns bytes.
func kibibytes(text, key string) (uint64, bool) {
	for line := range strings.Lines(text) {
		_, value, found := strings.Cut(line, key)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		return n << 10, err == nil
	}
	return 0, false
}

// countCPUs takes the kernel's list of online processors first: it has the same form on every architecture, while
// /proc/cpuinfo has not ("cpu cores" exists on x86 only; relying on it once made a server report no capacity at all).
func countCPUs(src Source) int {
	if data, err := fs.ReadFile(src.FS, "sys/devices/system/cpu/online"); err == nil {
		if n := countList(string(data)); n > 0 {
			return n
		}
	}
	if data, err := fs.ReadFile(src.FS, "proc/cpuinfo"); err == nil {
		n := 0
		for line := range strings.Lines(string(data)) {
			key, _, found := strings.Cut(line, ":")
			// x86, arm64 and riscv write "processor : 0"; s390x writes "processor 0: version = …".
			if found && (strings.TrimSpace(key) == "processor" || strings.HasPrefix(key, "processor ")) {
				n++
			}
		}
		if n > 0 {
			return n
		}
	}
	return max(1, src.NumCPU())
}

// countList counts the members of a kernel list such as "0-3,8". A malformed list counts as 0.
func countList(list string) int {
	n := 0
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		if part == "" {
			continue
		}
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.Atoi(first)
		b, errB := strconv.Atoi(last)
		if errA != nil || errB != nil || b < a {
			return 0
		}
		n += b - a + 1
	}
	return n
}

func readHugePages(fsys fs.FS) []HugePages {
	const dir = "sys/kernel/mm/hugepages"
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return nil
	}
	var pools []HugePages
	for _, e := range entries {
		size, ok := strings.CutPrefix(e.Name(), "hugepages-")
		size, isKB := strings.CutSuffix(size, "kB")
		kb, err := strconv.ParseUint(size, 10, 64)
		if !ok || !isKB || err != nil {
			continue
		}
		pools = append(pools, HugePages{
			SizeBytes: kb << 10,
			Total:     readUint(fsys, path.Join(dir, e.Name(), "nr_hugepages")),
			Free:      readUint(fsys, path.Join(dir, e.Name(), "free_hugepages")),
		})
	}
	slices.SortFunc(pools, func(a, b HugePages) int {
		return int(min(max(int64(a.SizeBytes)-int64(b.SizeBytes), -1), 1))
	})
	return pools
}

func readUint(fsys fs.FS, name string) uint64 {
	data, err := fs.ReadFile(fsys, name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func readNUMA(fsys fs.FS) []NUMANode {
	const dir = "sys/devices/system/node"
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return nil
	}
	var nodes []NUMANode
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), "node")
		id, err := strconv.Atoi(number)
		if !ok || err != nil {
			continue
		}
		node := NUMANode{ID: id}
		if data, err := fs.ReadFile(fsys, path.Join(dir, e.Name(), "cpulist")); err == nil {
			node.CPUs = countList(string(data))
		}
		if data, err := fs.ReadFile(fsys, path.Join(dir, e.Name(), "meminfo")); err == nil {
			node.MemoryBytes, _ = kibibytes(string(data), "MemTotal:")
		}
		nodes = append(nodes, node)
	}
	slices.SortFunc(nodes, func(a, b NUMANode) int { return a.ID - b.ID })
	return nodes
}

func cgroupVersion(fsys fs.FS) int {
	exists := func(name string) bool {
		_, err := fs.Stat(fsys, name)
		return err == nil
	}
	switch {
	case exists("sys/fs/cgroup/cgroup.controllers"):
		return 2
	case exists("sys/fs/cgroup/memory"), exists("sys/fs/cgroup/cpu"), exists("sys/fs/cgroup/unified"):
		return 1
	default:
		return 0
	}
}

// systemdIsInit wants both signs: the directory alone can be a bind mount in a container whose process 1 is another.
func systemdIsInit(fsys fs.FS) bool {
	if info, err := fs.Stat(fsys, "run/systemd/system"); err != nil || !info.IsDir() {
		return false
	}
	comm, err := fs.ReadFile(fsys, "proc/1/comm")
	name := strings.TrimSpace(string(comm))
	return err == nil && (name == "systemd" || name == "init")
}
