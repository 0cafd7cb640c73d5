// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package storagedaemon

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
)

// guestWrites is how often the guest writes and flushes each disk.
const guestWrites = 5

// TestWhatAGuestFlushesIsFlushed counts the system calls of storage daemons against the writes of a real guest, which
// asks each time for its data to be durable.
func TestWhatAGuestFlushesIsFlushed(t *testing.T) {
	r := newRig(t)
	for _, program := range []string{"strace", "qemu-system-x86_64"} {
		if _, err := exec.LookPath(program); err != nil || runtime.GOARCH != "amd64" {
			t.Skipf("SKIPPED, AND NOTHING IS PROVEN: this needs %s, on amd64", program)
		}
	}
	l := r.life()
	policies := []struct {
		name           string
		direct, unsafe bool
		least, most    int
	}{
		{name: "writethrough", least: guestWrites, most: 100 * guestWrites},
		{name: "directsync", direct: true, least: guestWrites, most: 100 * guestWrites},
		{name: "unsafe", unsafe: true},
	}
	var sockets []string
	var counts []func() int
	for _, p := range policies {
		e := r.export("m1", p.name)
		e.Unsafe = p.unsafe
		cache := map[string]any{"direct": p.direct, "no-flush": p.unsafe}
		e.Node = map[string]any{
			"driver": "raw", "cache": cache, "discard": "unmap",
			"file": map[string]any{"driver": "file", "filename": e.Node["filename"], "cache": cache},
		}
		sockets = append(sockets, r.serve(l, e).Socket)
		t.Cleanup(func() { _ = l.Stop(context.Background(), e.Ref, e.Dir) })
	}
	console := bootWith(t, sockets)
	for i, p := range policies {
		counts = append(counts, traced(t, r.pid(l, r.export("m1", p.name).Ref)))
		console.run(fmt.Sprintf("cat /sys/block/vd%c/queue/write_cache; for i in 1 2 3 4 5; do dd if=/dev/urandom of=/dev/vd%[1]c bs=4096 seek=$i count=1 conv=fsync 2>/dev/null; done", 'a'+i))
	}
	for i, p := range policies {
		n := counts[i]()
		t.Logf("%s: %d flushes for %d writes that the guest flushed", p.name, n, guestWrites)
		if n < p.least || n > p.most {
			t.Errorf("%s: %d flushes, want %d to %d", p.name, n, p.least, p.most)
		}
	}
}

// traced counts a process' flushes until the returned function is called.
func traced(t *testing.T, pid int) func() int {
	t.Helper()
	out := filepath.Join(t.TempDir(), "strace")
	cmd := exec.Command("strace", "-f", "-e", "trace=fsync,fdatasync,sync_file_range,syncfs", "-o", out, "-p", fmt.Sprint(pid))
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stderr).ReadString('\n')
	if err != nil || !strings.Contains(line, "attached") {
		_ = cmd.Wait()
		t.Skipf("SKIPPED, AND NOTHING IS PROVEN: strace may not look at other processes here: %s", line)
	}
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	return func() int {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait()
		raw, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(raw, []byte("sync(")) + bytes.Count(raw, []byte("syncfs(")) + bytes.Count(raw, []byte("sync_file_range("))
	}
}

// shell is a guest's console.
type shell struct {
	t     *testing.T
	in    io.Writer
	lines *bufio.Scanner
	n     int
}

// bootWith boots the test guest with nothing but disks behind vhost-user sockets.
func bootWith(t *testing.T, sockets []string) *shell {
	t.Helper()
	files, err := guest.Build(t.Context(), guest.Options{CacheDir: guest.DefaultCacheDir(), Arch: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"-machine", "q35,memory-backend=mem", "-accel", "tcg", "-cpu", "max", "-m", "192", "-nodefaults", "-display", "none",
		"-object", "memory-backend-memfd,id=mem,share=on,size=192M", "-serial", "stdio", "-no-reboot",
		"-kernel", files.VMLinux, "-initrd", files.Initramfs, "-append", guest.DefaultCommandLine("amd64"),
	}
	for i, socket := range sockets {
		args = append(args, "-chardev", fmt.Sprintf("socket,id=c%d,path=%s", i, socket), "-device", fmt.Sprintf("vhost-user-blk-pci,chardev=c%d", i))
	}
	cmd := exec.Command("qemu-system-x86_64", args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	timer := time.AfterFunc(4*time.Minute, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() { timer.Stop() })
	s := &shell{t: t, in: in, lines: bufio.NewScanner(out)}
	s.until("guest: ready login:")
	return s
}

func (s *shell) until(text string) {
	s.t.Helper()
	for s.lines.Scan() {
		if strings.Contains(s.lines.Text(), text) {
			return
		}
	}
	s.t.Fatalf("the guest never says %q: %v", text, s.lines.Err())
}

// run types a command and waits for its end.
func (s *shell) run(command string) {
	s.t.Helper()
	s.n++
	if _, err := fmt.Fprintf(s.in, "%s; echo end-$((40+2))-%d\n", command, s.n); err != nil {
		s.t.Fatal(err)
	}
	s.until(fmt.Sprintf("end-42-%d", s.n))
}
