// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// busybox is there when the packer found it; without it the guest has markers but no shell and no DHCP.
const busybox = "/bin/busybox"

// reaper starts children and collects every child of process 1, own or orphaned. The os/exec package cannot be used
// beside it: a wait for any child would steal its exit statuses.
type reaper struct {
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
}

func newReaper() *reaper {
	r := &reaper{waiting: map[int]chan syscall.WaitStatus{}}
	exits := make(chan os.Signal, 1)
	signal.Notify(exits, unix.SIGCHLD)
	go func() {
		for range exits {
			r.collect()
		}
	}()
	return r
}

func (r *reaper) collect() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		r.mu.Lock()
		if done, ok := r.waiting[pid]; ok {
			done <- status
			delete(r.waiting, pid)
		}
		r.mu.Unlock()
	}
}

// start runs a program with the given standard files; its exit status comes on the channel.
func (r *reaper) start(argv, env []string, files []uintptr, sys *syscall.SysProcAttr) (<-chan syscall.WaitStatus, error) {
	// The lock is held over the fork, so that a child that ends at once is known when it is collected.
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Dir: "/", Env: env, Files: files, Sys: sys})
	if err != nil {
		return nil, err
	}
	done := make(chan syscall.WaitStatus, 1)
	r.waiting[pid] = done
	return done, nil
}

// watchSignals obeys busybox's reboot, halt and poweroff, which signal process 1.
func (g *guest) watchSignals() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2)
	go func() {
		for s := range signals {
			if s == unix.SIGTERM {
				g.powerOff(unix.LINUX_REBOOT_CMD_RESTART, "guest: reboot")
			} else {
				g.powerOff(unix.LINUX_REBOOT_CMD_POWER_OFF, "guest: power off")
			}
		}
	}()
}

// serveShell keeps an interactive shell on the console for ever.
func (g *guest) serveShell() {
	if _, err := os.Stat(busybox); err != nil {
		return
	}
	for {
		if err := g.runShell(); err != nil {
			g.fail("shell", err)
		}
		// A console that is gone must not turn into a busy loop.
		time.Sleep(scanInterval)
	}
}

func (g *guest) runShell() error {
	tty, err := os.OpenFile(consoleDevice(), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer tty.Close()
	fd := tty.Fd()
	env := []string{"PATH=/bin:/sbin", "HOME=/", "TERM=linux", "PS1=chp:\\w# "}
	done, err := g.reaper.start([]string{busybox, "sh", "-i"}, env, []uintptr{fd, fd, fd},
		&syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0})
	if err != nil {
		return err
	}
	<-done
	return nil
}

// consoleDevice is the terminal behind /dev/console. /dev/console itself cannot be a controlling terminal, without
// which a shell has no job control.
func consoleDevice() string {
	active := strings.Fields(readTrimmed("/sys/class/tty/console/active"))
	if len(active) == 0 {
		return "/dev/console"
	}
	// The kernel lists the one that /dev/console means last.
	return "/dev/" + active[len(active)-1]
}
