// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package nested

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
)

const (
	// memoryMiB is enough for three guests and all files, which are in the machine's memory.
	memoryMiB = 2560
	// cpus is one: with two QEMU 7.2 hung in two runs of five, with both processors at work and no progress, when
	// guests were killed while they booted. Two are also hardly faster where the host is busy.
	cpus = 1

	// Script is the file in the machine that holds the commands.
	Script = "/nested/run"

	readyMarker = "guest: ready login:"

	// heartbeat is said all the time, so that silence means that the machine hangs.
	heartbeat         = "nested: alive"
	heartbeatInterval = 15 // seconds

	prologue = `trap 'echo "nested: ended" with $?' EXIT
while sleep %d; do echo %s; done &
set -e
`
)

// exitMarker is what the script says last. The script's text does not match it, so that an echo of it is no end.
var exitMarker = regexp.MustCompile(`nested: ended with ([0-9]+)`)

// ErrMachineDied says that the emulated machine ended or fell silent before the commands did. That is a matter of the
// emulator, so the whole run may be repeated.
var ErrMachineDied = errors.New("the emulated machine died")

// Options describes an emulated machine with KVM.
type Options struct {
	// QEMU is the emulator, 7.2 or newer. Required.
	QEMU string
	// Guest is the guest to boot, built with Modules. Required.
	Guest guest.Files
	// Files are copied into the machine: path there -> path here. They keep their permissions.
	Files map[string]string
	// Commands are run by a shell, one after the other, until one fails.
	Commands []string
	// Init is a program of the machine to be its process 1 in place of the guest's. It has to run Script with the console
	// as output. Default: the guest's own, in whose shell Script is run.
	Init string
	// Line gets each line of the console. Required.
	Line func(text string)
	// Silence is how long the console may be silent before the machine counts as dead; default 3 minutes.
	Silence time.Duration
}

// Modules are the kernel modules that the guest needs to be a host.
func Modules() []string { return []string{"kvm", "kvm_amd", "tun"} }

// Run boots the machine, runs the commands in it and returns the exit status of the last that ran. Nothing of the
// machine is left when it returns.
func Run(ctx context.Context, o Options) (status int, err error) {
	if o.Silence == 0 {
		o.Silence = 3 * time.Minute
	}
	dir, err := os.MkdirTemp("", "chp-nested")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	archive := filepath.Join(dir, "initramfs")
	if err := o.pack(archive); err != nil {
		return 0, fmt.Errorf("pack files for the emulated machine: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, o.QEMU, "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-smp", strconv.Itoa(cpus), "-m", strconv.Itoa(memoryMiB), "-nodefaults", "-no-user-config", "-nographic",
		"-no-reboot", "-serial", "stdio", "-kernel", o.Guest.VMLinux, "-initrd", archive,
		"-append", o.commandLine())
	cmd.WaitDelay = 10 * time.Second
	cmd.SysProcAttr = endWithUs()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	console, terminal := io.Pipe()
	cmd.Stdout, cmd.Stderr = terminal, terminal
	var end error // of the machine, once ended is closed
	ended := make(chan struct{})
	go func() {
		runtime.LockOSThread() // whose end would end the machine
		defer runtime.UnlockOSThread()
		defer close(ended)
		end = cmd.Run()
		_ = terminal.Close()
	}()
	silence := time.AfterFunc(o.Silence, func() { cancel(fmt.Errorf("%w: silent for %v", ErrMachineDied, o.Silence)) })
	status, over := o.follow(console, stdin, func() { silence.Reset(o.Silence) })
	silence.Stop()
	_ = console.Close() // what is said from now on blocks nobody
	switch cause := context.Cause(ctx); {
	case over:
		cancel(nil)
		<-ended // why is told by the status
		return status, nil
	case cause != nil:
		<-ended
		return 0, cause
	default:
		<-ended
		return 0, fmt.Errorf("%w: %w", ErrMachineDied, errors.Join(end, errors.New("before its commands ended")))
	}
}

func (o Options) commandLine() string {
	if o.Init == "" {
		return guest.DefaultCommandLine("amd64")
	}
	return guest.DefaultCommandLine("amd64") + " rdinit=" + o.Init
}

// pack writes the initramfs with all files and the script.
func (o Options) pack(path string) error {
	var overlay guest.Overlay
	for name, source := range o.Files {
		info, err := os.Stat(source)
		if err != nil {
			return err
		}
		overlay.File(name, source, info.Mode())
	}
	overlay.Text(Script, fmt.Sprintf(prologue, heartbeatInterval, heartbeat)+strings.Join(o.Commands, "\n")+"\n", 0o755)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(overlay.Append(f, o.Guest.Initramfs), f.Close())
}

// follow types the command once there is a shell and reads the console to the end; over says that the script ended.
func (o Options) follow(console io.Reader, keyboard io.Writer, alive func()) (status int, over bool) {
	lines := bufio.NewReader(console)
	for {
		line, err := lines.ReadString('\n')
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			alive()
			if line != heartbeat {
				o.Line(line)
			}
		}
		if err != nil {
			return 0, false
		}
		if strings.Contains(line, readyMarker) && !over {
			if _, err := fmt.Fprintf(keyboard, "sh %s\n", Script); err != nil {
				return 0, false
			}
		}
		if m := exitMarker.FindStringSubmatch(line); m != nil {
			if status, err = strconv.Atoi(m[1]); err == nil {
				return status, true
			}
		}
	}
}
