// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// scanInterval bounds how late a change is announced.
	scanInterval = 200 * time.Millisecond
	// controllerWait bounds the wait for disks behind controllers that the kernel scans in the background.
	controllerWait = 2 * time.Second
)

func main() {
	if filepath.Base(os.Args[0]) == "shutdown" {
		if err := shutdown(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "shutdown:", err)
			os.Exit(1)
		}
		return
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: not process 1 of a guest; refusing to mount, load modules or power off")
		os.Exit(1)
	}
	g := &guest{out: os.Stdout}
	g.run()
}

// guest is the running machine as process 1 sees it.
type guest struct {
	out     *os.File
	outMu   sync.Mutex
	shellOn atomic.Bool

	cmdline     []string
	reaper      *reaper
	rootMounted bool
}

func (g *guest) run() {
	mountErr := mountKernelFilesystems()
	// The firmware may have left the cursor in the middle of a line.
	g.say("\nguest: booting")
	if mountErr != nil {
		g.fail("mount", mountErr)
	}
	g.cmdline = strings.Fields(readTrimmed("/proc/cmdline"))
	g.loadModules("/lib/modules/boot.list")
	g.reaper = newReaper()
	g.watchSignals()
	if err := linkUp("lo"); err != nil {
		g.fail("bring lo up", err)
	}
	waitForDisks()

	source, payload := findIgnition("/sys", g.ignitionFromDisk)
	for _, line := range ignitionMarkers(source, payload) {
		g.say(line)
	}
	seen := scanHardware("/sys")
	for _, d := range seen.disks {
		g.say("guest: disk " + d.fields())
	}
	for _, n := range seen.nics {
		g.say("guest: net " + n.fields())
		g.configureNIC(n.name)
	}
	g.countBoot(seen.disks)
	buttons := &powerButtons{guest: g, open: map[string]bool{}}
	buttons.scan()
	g.say("guest: ready login:")
	g.shellOn.Store(true)
	go g.serveShell()
	go g.serveAgent()
	for {
		time.Sleep(scanInterval)
		now := scanHardware("/sys")
		for _, line := range changeMarkers(seen, now) {
			g.say(line)
		}
		for _, n := range newNICs(seen, now) {
			g.configureNIC(n.name)
		}
		seen = now
		buttons.scan()
	}
}

// say prints one marker. Once a shell owns the console the marker is put on a line of its own, whatever the prompt.
func (g *guest) say(line string) {
	if g.shellOn.Load() {
		line = "\n" + line
	}
	g.outMu.Lock()
	defer g.outMu.Unlock()
	// One write, so that no other output gets between; a console that fails cannot be told about it.
	_, _ = g.out.WriteString(line + "\n")
}

func (g *guest) fail(what string, err error) {
	g.say(fmt.Sprintf("guest: error %s: %v", what, err))
}

func (g *guest) option(word string) bool {
	for _, w := range g.cmdline {
		if w == word {
			return true
		}
	}
	return false
}

// powerOff ends the machine, cleanly for the root disk. how is a unix.LINUX_REBOOT_CMD_ value.
func (g *guest) powerOff(how int, marker string) {
	g.say(marker)
	unix.Sync()
	if g.rootMounted {
		// A shell may sit on the mount; read-only is enough to leave a clean journal.
		if err := unix.Unmount(rootMount, 0); err != nil {
			_ = unix.Mount("", rootMount, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
		}
	}
	if err := unix.Reboot(how); err != nil {
		g.fail("power off", err)
	}
}
