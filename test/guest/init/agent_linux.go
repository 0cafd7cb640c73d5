// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	agentProgram = "/usr/sbin/qemu-ga"
	agentPort    = "org.qemu.guest_agent.0"
	// agentVsock is any address, and the port by the provider's convention.
	agentVsock = "4294967295:1024"
	// agentPause is the time between two lives of an agent.
	agentPause = time.Second
)

// serveAgent keeps the guest agent running for ever, if it is wanted and there.
func (g *guest) serveAgent() {
	if !g.option("chp.agent") {
		return
	}
	if _, err := os.Stat(agentProgram); errors.Is(err, fs.ErrNotExist) {
		g.say("guest: agent not built in")
		return
	}
	method, path := agentChannel("/sys")
	if method == "" {
		g.say("guest: agent without channel")
		return
	}
	g.say("guest: agent " + method)
	for {
		if err := g.runAgent(method, path); err != nil {
			g.fail("guest agent", err)
		}
		time.Sleep(agentPause)
	}
}

// agentChannel waits a little: the kernel learns the names of virtio-serial ports in the background.
func agentChannel(sys string) (method, path string) {
	for deadline := time.Now().Add(controllerWait); ; time.Sleep(20 * time.Millisecond) {
		for _, port := range names(filepath.Join(sys, "class/virtio-ports")) {
			if readTrimmed(filepath.Join(sys, "class/virtio-ports", port, "name")) == agentPort {
				return "virtio-serial", filepath.Join("/dev", port)
			}
		}
		devices, _ := filepath.Glob(filepath.Join(sys, "bus/virtio/drivers/vmw_vsock_virtio_transport/virtio*"))
		if len(devices) > 0 {
			return "vsock-listen", agentVsock
		}
		if time.Now().After(deadline) {
			return "", ""
		}
	}
}

func (g *guest) runAgent(method, path string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	fd := null.Fd()
	done, err := g.reaper.start([]string{agentProgram, "-m", method, "-p", path, "-t", "/run", "-l", "/run/qemu-ga.log"},
		[]string{"PATH=/sbin:/bin"}, []uintptr{fd, fd, fd}, nil)
	if err != nil {
		return err
	}
	status := <-done
	return fmt.Errorf("it ended with status %d, signal %d", status.ExitStatus(), status.Signal())
}

// shutdown is what the guest agent calls as /sbin/shutdown: -P or -H for off, -r for restart, then when and why.
func shutdown(args []string) error {
	how := unix.SIGUSR2
	if slices.Contains(args, "-r") {
		how = unix.SIGTERM
	}
	return unix.Kill(1, how)
}
