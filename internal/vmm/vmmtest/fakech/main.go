// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Main runs the fake with the arguments after the program name and returns its exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	// A thousand of these may run at once: little memory matters more than speed.
	debug.SetGCPercent(50)
	runtime.GOMAXPROCS(2)
	syscall.Umask(0o077)
	opts, err := parseArgs(args)
	var usage usageError
	switch {
	case errors.As(err, &usage):
		fmt.Fprint(stderr, usage.text)
		return 2
	case err != nil:
		return fatal(stderr, err)
	}
	script, err := loadScript(os.Getenv(ScriptEnv))
	if err != nil {
		return fatal(stderr, err)
	}
	d, err := parseVersion(script.Version)
	if err != nil {
		return fatal(stderr, err)
	}
	switch {
	case opts.help:
		fmt.Fprint(stdout, usageText)
		return 0
	case opts.version:
		build := script.BuildVersion
		if build == "" {
			build = d.build()
		}
		fmt.Fprintf(stdout, "cloud-hypervisor %s\n", build)
		if d >= dialect53 {
			fmt.Fprintln(stdout, "Migration Protocol Versions: 0")
		}
		return 0
	}
	return start(opts, script, d, stderr)
}

// fatal prints an error as the real one does and is the exit code for it.
func fatal(stderr io.Writer, err error) int {
	var chain *chainError
	if errors.As(err, &chain) {
		printChain(stderr, chain.texts)
		return 1
	}
	printChain(stderr, []string{err.Error()})
	return 1
}

// start opens what the arguments name, serves until the VMM ends, and cleans up as the exit code
// demands: only a clean end removes the API socket.
func start(opts options, script Script, d dialect, stderr io.Writer) int {
	log, err := openLog(opts, stderr)
	if err != nil {
		return fatal(stderr, failed("Error creating log file", osText(err)))
	}
	fd, err := openEvents(opts)
	if err != nil {
		return fatal(stderr, err)
	}
	mon := newMonitor(fd)
	mon.emit("vmm", "starting")
	if script.StartFailure != "" {
		return fatal(stderr, failed("Failed to start the VMM thread", script.StartFailure))
	}
	time.Sleep(time.Duration(script.StartDelayMS) * time.Millisecond)
	v := newVMM(d, script, mon, log, stderr)
	v.stayAlive = opts.noShutdown
	v.watchSignals()
	v.planEnd()
	var ctl *net.UnixListener
	api, unlock, err := opts.listen(d, func() (err error) {
		// Whoever can reach the API can reach the control socket too.
		ctl, err = openControl(opts, script)
		return err
	})
	defer unlock()
	if ctl != nil {
		defer func() { _ = ctl.Close() }()
	}
	if err != nil {
		return fatal(stderr, err)
	}
	if ctl != nil {
		go v.serveControl(ctl)
	}
	var server *apiServer
	if api != nil {
		server = &apiServer{
			ln: api, limit: d.bodyLimit(), handle: v.dispatch, conns: map[*net.UnixConn]struct{}{},
			resets: func(path string) bool { return v.faults.reset(strings.TrimPrefix(path, apiRoot)) },
		}
		go server.serve()
	}
	code := v.run()
	if server != nil {
		server.close()
	}
	if code == 0 && opts.apiPath != "" {
		_ = os.Remove(opts.apiPath)
	}
	return code
}

// watchSignals turns SIGTERM and SIGINT into a clean end; SIGQUIT and SIGHUP kill.
func (v *vmm) watchSignals() {
	resetSignal(syscall.SIGQUIT)
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for range ch {
			v.post(func() { _ = v.vmmShutdown() })
		}
	}()
}

// planEnd arms the ends the script wants.
func (v *vmm) planEnd() {
	if ms := v.script.ExitAfterMS; ms > 0 {
		v.after(ms, func() { _ = v.vmmShutdown() })
	}
	if ms := v.script.KillAfterMS; ms > 0 {
		sig := syscall.SIGKILL
		if v.script.KillSignal != 0 {
			sig = syscall.Signal(v.script.KillSignal)
		}
		time.AfterFunc(time.Duration(ms)*time.Millisecond, func() { killSelf(sig) })
	}
}

func openControl(opts options, script Script) (*net.UnixListener, error) {
	path := script.ControlSocket
	if path == "" && script.Control {
		if opts.apiPath == "" {
			return nil, errors.New("script: control_socket is needed without an API socket path")
		}
		path = opts.apiPath + ".ctl"
	}
	if path == "" {
		return nil, nil
	}
	// Unlike the API socket this one is the test's own: a stale one is of no interest.
	_ = os.Remove(path)
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

func openLog(opts options, stderr io.Writer) (*slog.Logger, error) {
	level := slog.LevelWarn
	if opts.verbose > 0 {
		level = slog.LevelInfo
	}
	w := stderr
	if opts.logFile != "" {
		f, err := os.Create(opts.logFile)
		if err != nil {
			return nil, err
		}
		w = f
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})), nil
}

// openEvents returns the descriptor of the event stream, -1 for none.
func openEvents(opts options) (int, error) {
	if opts.events == "" {
		return -1, nil
	}
	key, value, _ := strings.Cut(opts.events, "=")
	switch key {
	case "path":
		fd, err := syscall.Open(value, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_TRUNC|syscall.O_CLOEXEC, 0o666)
		if err != nil {
			return -1, failed("Error doing event monitor I/O", osText(err))
		}
		return fd, nil
	case "fd":
		fd, err := strconv.Atoi(value)
		if err != nil {
			return -1, failed("Error parsing --event-monitor", "invalid value: "+value)
		}
		return fd, nil
	default:
		return -1, failed("Error parsing --event-monitor", "unknown option: "+key)
	}
}

// randomMAC is a locally administered address, as generated for a NIC without one.
func randomMAC() string {
	n := rand.Uint64()
	return fmt.Sprintf("2e:%02x:%02x:%02x:%02x:%02x", byte(n), byte(n>>8), byte(n>>16), byte(n>>24), byte(n>>32))
}
