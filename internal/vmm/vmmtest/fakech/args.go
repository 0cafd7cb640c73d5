// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// options is the understood part of the command line.
type options struct {
	apiPath    string
	apiFD      int // -1: none
	events     string
	logFile    string
	verbose    int
	noShutdown bool
	version    bool
	help       bool
}

// usageText heads what --help and an empty command line print.
const usageText = "Launch a cloud-hypervisor VMM.\n\nUsage: cloud-hypervisor [OPTIONS]\n\nOptions:\n" +
	"      --api-socket <api-socket>\n          HTTP API socket (UNIX domain socket): path=<path> or fd=<fd>.\n" +
	"      --event-monitor <event-monitor>\n          Path to report events on: path=<path> or fd=<fd>\n" +
	"      --log-file <log-file>\n          Log file. Standard error is used if not specified\n" +
	"      --no-shutdown\n          Do not exit the VMM when the guest shuts down\n"

// usageError is a command line that was not understood; the process exits 2.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return usageError{fmt.Sprintf("error: "+format, args...) +
		"\n\nUsage: cloud-hypervisor [OPTIONS]\n\nFor more information, try '--help'.\n"}
}

// parseArgs reads the command line. Options of a machine are refused: machines come over the API.
func parseArgs(args []string) (options, error) {
	o := options{apiFD: -1}
	if len(args) == 0 {
		return o, usageError{usageText}
	}
	for i := 0; i < len(args); i++ {
		name, value, inline := strings.Cut(args[i], "=")
		takes := map[string]bool{
			"--api-socket": true, "--event-monitor": true, "--log-file": true, "--log-format": true, "--seccomp": true,
		}[name]
		if takes && !inline {
			if i++; i == len(args) {
				return o, usagef("a value is required for '%s <%s>' but none was supplied", name, name[2:])
			}
			value = args[i]
		}
		if err := o.set(name, value, args, i); err != nil {
			return o, err
		}
	}
	return o, nil
}

func (o *options) set(name, value string, args []string, i int) error {
	switch name {
	case "--api-socket":
		return o.setSocket(value)
	case "--event-monitor":
		o.events = value
	case "--log-file":
		o.logFile = value
	case "--log-format":
	case "--seccomp":
		switch value {
		case "true", "false", "log", "errno":
		default:
			return usagef("invalid value '%s' for '--seccomp <seccomp>'", value)
		}
	case "-v", "-vv", "-vvv":
		o.verbose += len(name) - 1
	case "--no-shutdown":
		o.noShutdown = true
	case "--version", "-V":
		o.version = true
	case "--help", "-h":
		o.help = true
	case "--cpus", "--memory", "--disk", "--net", "--serial", "--console", "--platform", "--cmdline", "--landlock":
		return usagef("the following required arguments were not provided:\n  <--firmware <firmware>|--kernel <kernel>>")
	default:
		return usagef("unexpected argument '%s' found", args[i])
	}
	return nil
}

func (o *options) setSocket(value string) error {
	for _, part := range strings.Split(value, ",") {
		key, v, ok := strings.Cut(part, "=")
		switch {
		case ok && key == "fd":
			fd, err := strconv.Atoi(v)
			if err != nil {
				return failed("Error parsing --api-socket", "invalid digit found in string")
			}
			o.apiFD = fd
		case ok && key == "path":
			o.apiPath = v
		default:
			o.apiPath = value
		}
	}
	return nil
}

// listen opens the API socket; nil without one. From v53 on a lock file beside it guards the path, and
// a stale socket is removed under the lock; before, a stale socket is in the way. Once the path is known
// to be free, and before anybody can connect, ready is called.
func (o *options) listen(d dialect, ready func() error) (*net.UnixListener, func(), error) {
	nothing := func() {}
	if o.apiFD >= 0 {
		if err := ready(); err != nil {
			return nil, nothing, err
		}
		ln, err := o.inherit()
		return ln, nothing, err
	}
	if o.apiPath == "" {
		return nil, nothing, ready()
	}
	unlock := nothing
	if d >= dialect53 {
		lock, err := o.lock()
		if err != nil {
			return nil, nothing, err
		}
		// The file stays: removing it would let two processes hold locks on different files.
		unlock = func() { lock.Close() }
		_ = os.Remove(o.apiPath)
	}
	if _, err := os.Lstat(o.apiPath); err != nil {
		if err := ready(); err != nil {
			return nil, unlock, err
		}
	}
	ln, err := listenUnix(o.apiPath)
	if err != nil {
		return nil, unlock, startFailure("Error creation API server's socket", osText(errors.Unwrap(err)))
	}
	return ln, unlock, nil
}

func startFailure(texts ...string) error {
	return failed(append([]string{"Failed to start the VMM thread"}, texts...)...)
}

// lock keeps other instances off the path.
func (o *options) lock() (*os.File, error) {
	lock, err := os.OpenFile(o.apiPath+".lock", os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, startFailure("Error creation API server's socket", osText(err))
	}
	busy, err := lockRange(lock, true, 0)
	switch {
	case busy:
		_ = lock.Close()
		return nil, startFailure(fmt.Sprintf("API socket %q is already in use by another running instance", o.apiPath))
	case err != nil:
		_ = lock.Close()
		return nil, startFailure("Error creation API server's socket", osText(err))
	}
	return lock, nil
}

// inherit takes over a socket that listens already; it is never removed.
func (o *options) inherit() (*net.UnixListener, error) {
	f := os.NewFile(uintptr(o.apiFD), "api-socket")
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, startFailure("Error creating API server", osText(err))
	}
	unix, ok := ln.(*net.UnixListener)
	if !ok {
		_ = ln.Close()
		return nil, startFailure("Error creating API server", "not a Unix socket")
	}
	unix.SetUnlinkOnClose(false)
	return unix, nil
}
