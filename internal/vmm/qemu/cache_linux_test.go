// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// TestEachCachePolicyFlushesAsItSays counts what QEMU asks of the kernel while the guest writes a block and syncs it,
// again and again.
func TestEachCachePolicyFlushesAsItSays(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("SKIPPED LOUDLY: no strace (Debian package strace); that cache policies flush as they say is NOT tested")
	}
	r := bootLinux(t)
	const syncs = 10
	for i, c := range []struct {
		policy     vmm.CachePolicy
		guestCache string // what the guest is shown
		direct     bool
		min, max   int // flushes of the file; 0, 0 = none
	}{
		{vmm.CacheDirectSync, "write through", true, syncs, 4 * syncs},
		{vmm.CacheWriteThrough, "write through", false, syncs, 4 * syncs},
		{vmm.CacheNone, "write back", true, syncs, syncs + 2},
		{vmm.CacheWriteBack, "write back", false, syncs, syncs + 2},
		{"", "write back", false, syncs, syncs + 2},
		{vmm.CacheUnsafe, "write back", false, 0, 0},
	} {
		disk := vmm.Disk{ID: "disk-data", Path: r.file(fmt.Sprintf("cache%d.raw", i), 4<<20), Serial: fmt.Sprint("cache-", i), Cache: c.policy}
		r.must("attach", r.plug().AttachDisk(r.ctx(), disk))
		r.expect("guest: disk+ vdb serial=" + disk.Serial)
		if got := r.isDirect(disk.Path); got != c.direct {
			t.Errorf("%q: past the page cache is %v, want %v", c.policy, got, c.direct)
		}
		flushes := r.countFlushes(strace, disk.Path, func() {
			_, _ = fmt.Fprintln(r.console, "cat /sys/block/vdb/queue/write_cache")
			r.expect("\n" + c.guestCache + "\r")
			r.shell(fmt.Sprintf("for i in $(seq %d); do dd if=/dev/zero of=/dev/vdb bs=4096 count=1 seek=$i conv=fsync,notrunc 2>/dev/null; done", syncs))
		})
		t.Logf("policy %q: %d flushes for %d syncs of the guest", c.policy, flushes, syncs)
		if flushes < c.min || flushes > c.max {
			t.Errorf("policy %q: %d flushes for %d syncs of the guest, want %d to %d", c.policy, flushes, syncs, c.min, c.max)
		}
		r.gone(disk.ID, func() error { return r.plug().DetachDisk(r.ctx(), disk.ID) })
		r.expect("guest: disk- vdb")
	}
}

// isDirect tells whether QEMU has a file open past the page cache.
func (r *rig) isDirect(path string) bool {
	r.Helper()
	dir := fmt.Sprintf("/proc/%d", r.proc.Identity().PID)
	links, _ := filepath.Glob(dir + "/fd/*")
	for _, l := range links {
		if target, err := os.Readlink(l); err != nil || target != path {
			continue
		}
		info, err := os.ReadFile(filepath.Join(dir, "fdinfo", filepath.Base(l)))
		r.must("read flags", err)
		for _, line := range strings.Split(string(info), "\n") {
			if octal, ok := strings.CutPrefix(line, "flags:"); ok {
				flags, err := strconv.ParseInt(strings.TrimSpace(octal), 8, 64)
				r.must("read flags", err)
				return flags&syscall.O_DIRECT != 0
			}
		}
	}
	r.Fatalf("QEMU does not have %s open", path)
	return false
}

// countFlushes counts QEMU's calls that flush a file while do runs.
func (r *rig) countFlushes(strace, path string, do func()) int {
	r.Helper()
	out := filepath.Join(r.cfg.StateDir, "strace.out")
	_ = os.Remove(out)
	cmd := exec.Command(strace, "-f", "-y", "-e", "trace=fsync,fdatasync,sync_file_range,syncfs", "-o", out, "-p", fmt.Sprint(r.proc.Identity().PID))
	stderr, err := cmd.StderrPipe()
	r.must("start strace", err)
	r.must("start strace", cmd.Start())
	attached := make(chan string, 1)
	go func() {
		buffer := make([]byte, 4096)
		var text strings.Builder
		for {
			n, err := stderr.Read(buffer)
			text.Write(buffer[:n])
			if strings.Contains(text.String(), "attached") || err != nil {
				attached <- text.String()
				return
			}
		}
	}()
	select {
	case text := <-attached:
		if !strings.Contains(text, "attached") {
			_ = cmd.Wait()
			r.Skipf("SKIPPED LOUDLY: strace may not look at QEMU (%s); that cache policies flush as they say is NOT tested", text)
		}
	case <-time.After(patience):
		r.Fatal("strace does not start")
	}
	do()
	r.must("end strace", cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait()
	calls, err := os.ReadFile(out)
	r.must("read what strace wrote", err)
	n := 0
	for _, line := range strings.Split(string(calls), "\n") {
		// A call that was interrupted in print comes again as "resumed", without the path.
		if strings.Contains(line, "<"+path+">") {
			n++
		}
	}
	return n
}
