// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
)

// bootDeadline is generous: the guest is emulated, and the machine may be busy.
const bootDeadline = 3 * time.Minute

// builtGuest returns the guest from the shared cache.
func builtGuest(t *testing.T) guest.Files {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	files, err := guest.Build(ctx, guest.Options{CacheDir: guest.DefaultCacheDir(), Arch: "amd64"})
	if err != nil {
		t.Fatalf("build the guest: %v", err)
	}
	return files
}

// rootDiskCopy returns a root disk that the test may write to.
func rootDiskCopy(t *testing.T, files guest.Files) string {
	t.Helper()
	data, err := os.ReadFile(files.RootDisk)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "root.img")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// machine is a QEMU process with the guest's console on its standard files.
type machine struct {
	t      *testing.T
	stdin  io.Writer
	qmp    net.Conn
	qmpIn  *bufio.Reader
	exited chan error

	mu      sync.Mutex
	console bytes.Buffer
	grown   chan struct{} // closed and replaced when console grows
	read    int           // how much of console expect has gone past
}

// startMachine runs the guest emulated, which works on every host; args are added to QEMU's.
func startMachine(t *testing.T, files guest.Files, commandLine string, args ...string) *machine {
	t.Helper()
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("SKIPPED: qemu-system-x86_64 is not on this host (Debian package qemu-system-x86): the guest was NOT booted")
	}
	dir, err := os.MkdirTemp("", "guest-qmp-") // short: a socket path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "qmp")
	cmd := exec.Command(qemu, append([]string{
		"-M", "q35", "-accel", "tcg", "-cpu", "max", "-m", "192", "-nodefaults", "-no-user-config", "-nographic",
		"-serial", "stdio", "-qmp", "unix:" + socket + ",server=on,wait=off",
		"-kernel", files.VMLinux, "-initrd", files.Initramfs,
		"-append", guest.DefaultCommandLine("amd64") + " " + commandLine,
	}, args...)...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, stdin: stdin, exited: make(chan error, 1), grown: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = m, m
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { m.exited <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		m.waitExit()
		if t.Failed() {
			t.Logf("console of the guest:\n%s", m.text())
		}
	})
	m.dialQMP(socket)
	return m
}

// Write takes the console output.
func (m *machine) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.grown)
	m.grown = make(chan struct{})
	return m.console.Write(p)
}

func (m *machine) text() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.console.String()
}

// expect waits for whole console lines, in this order, after those expected earlier.
func (m *machine) expect(lines ...string) {
	m.t.Helper()
	for _, line := range lines {
		m.read = m.waitLine(line, m.read)
	}
}

// expectEver waits for a line that may come, or have come, in any order with others.
func (m *machine) expectEver(line string) {
	m.t.Helper()
	m.waitLine(line, 0)
}

// waitLine returns the offset of the end of the line, which is looked for from an offset on.
func (m *machine) waitLine(line string, from int) int {
	m.t.Helper()
	deadline := time.After(bootDeadline)
	for {
		m.mu.Lock()
		at := strings.Index(m.console.String()[from:], "\n"+line+"\r\n")
		grown := m.grown
		m.mu.Unlock()
		if at >= 0 {
			return from + at + len(line) + 1
		}
		select {
		case <-grown:
		case <-deadline:
			m.t.Fatalf("no console line %q", line)
		}
	}
}

func (m *machine) typeLine(line string) {
	m.t.Helper()
	if _, err := io.WriteString(m.stdin, line+"\n"); err != nil {
		m.t.Fatal(err)
	}
}

// waitExit waits for the QEMU process; calling it again is fine.
func (m *machine) waitExit() {
	m.t.Helper()
	select {
	case err := <-m.exited:
		m.exited <- err
	case <-time.After(bootDeadline):
		m.t.Error("QEMU did not exit")
	}
}

func (m *machine) dialQMP(socket string) {
	m.t.Helper()
	deadline := time.Now().Add(bootDeadline)
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			m.qmp, m.qmpIn = conn, bufio.NewReader(conn)
			m.t.Cleanup(func() { conn.Close() })
			break
		}
		select {
		case err := <-m.exited:
			m.exited <- err
			m.t.Fatalf("QEMU exited at once: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("dial QMP: %v", err)
		}
	}
	m.execute("qmp_capabilities", nil)
}

// execute runs one QMP command; the greeting and events are passed over.
func (m *machine) execute(command string, arguments any) {
	m.t.Helper()
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	_ = m.qmp.SetDeadline(time.Now().Add(bootDeadline))
	if err := json.NewEncoder(m.qmp).Encode(request); err != nil {
		m.t.Fatal(err)
	}
	for {
		line, err := m.qmpIn.ReadBytes('\n')
		if err != nil {
			m.t.Fatalf("QMP %s: %v", command, err)
		}
		var reply struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := json.Unmarshal(line, &reply); err != nil {
			m.t.Fatal(err)
		}
		if reply.Error != nil {
			m.t.Fatalf("QMP %s: %s", command, reply.Error.Desc)
		}
		if reply.Return != nil {
			return
		}
	}
}

func virtioDisk(id, path, serial string, more string) []string {
	return []string{
		"-drive", fmt.Sprintf("file=%s,format=raw,if=none,id=%s%s", path, id, more),
		"-device", fmt.Sprintf("virtio-blk-pci,drive=%s,serial=%s", id, serial),
	}
}
