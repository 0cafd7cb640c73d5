// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/configdisk"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

const (
	apiSocketName = "api.sock"
	// maxSocketPath is sun_path of Linux less its final zero byte.
	maxSocketPath = 107
	// noFileLimit is above the 4,096 to which the VMM raises its own table.
	noFileLimit = 8192
)

// paths are the files of one machine's VMM.
type paths struct {
	api, apiLock, serial, vsock, events, disk, log string
}

func pathsOf(ref vmm.Ref) paths {
	return paths{
		api:     filepath.Join(ref.RuntimeDir, apiSocketName),
		apiLock: filepath.Join(ref.RuntimeDir, apiSocketName+".lock"), // the VMM's own
		serial:  filepath.Join(ref.RuntimeDir, "serial.sock"),
		vsock:   filepath.Join(ref.RuntimeDir, "vsock.sock"),
		events:  filepath.Join(ref.RuntimeDir, "events"),
		disk:    filepath.Join(ref.RuntimeDir, "ignition.img"),
		log:     filepath.Join(ref.StateDir, "cloud-hypervisor.log"),
	}
}

// checkRef refuses directories that cannot go into a command line of the VMM or into a socket's address.
func checkRef(ref vmm.Ref) error {
	for field, dir := range map[string]string{"runtimeDir": ref.RuntimeDir, "stateDir": ref.StateDir} {
		switch {
		case !filepath.IsAbs(dir):
			return machine.InvalidField(field, "%q is not an absolute path", dir)
		case strings.ContainsAny(dir, ",[]\"\n"):
			return machine.InvalidField(field, "%q holds a character that separates options of Cloud Hypervisor", dir)
		}
	}
	if s := pathsOf(ref).serial; len(s) > maxSocketPath {
		return machine.InvalidField("runtimeDir", "%q makes a socket's path of %d bytes, at most %d are possible", ref.RuntimeDir, len(s), maxSocketPath)
	}
	return nil
}

// Prepare makes the directories, the event file and the config disk, removes stale sockets, and returns the
// command; see vmm.Driver. A socket that somebody listens on is machine.FailedPrecondition.
func (d *Driver) Prepare(ctx context.Context, cfg vmm.Config) (process.Spec, error) {
	if err := d.Validate(cfg); err != nil {
		return process.Spec{}, err
	}
	if err := checkRef(cfg.Ref); err != nil {
		return process.Spec{}, err
	}
	p := pathsOf(cfg.Ref)
	if err := d.prepare(ctx, p, cfg); err != nil {
		return process.Spec{}, err
	}
	return process.Spec{
		Name: "chp-vmm-" + cfg.MachineID,
		Argv: []string{
			d.opts.Binary,
			"--api-socket", "path=" + p.api,
			"--event-monitor", "path=" + p.events,
			"--no-shutdown",
			"--log-file", p.log,
			"--seccomp", "true",
		},
		Env:         d.opts.Env,
		LimitNOFILE: noFileLimit,
	}, nil
}

func (d *Driver) prepare(ctx context.Context, p paths, cfg vmm.Config) error {
	for _, dir := range []string{cfg.RuntimeDir, cfg.StateDir} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return prepareError(err)
		}
	}
	// The API's socket first: only who does not answer there has a serial socket that may be tried, since a
	// connection throws the console's client out.
	for _, socket := range []string{p.api, p.serial, p.vsock} {
		if err := removeStale(ctx, socket); err != nil {
			return err
		}
	}
	if err := remove(p.events, p.disk); err != nil {
		return prepareError(err)
	}
	// Made here so that it is there when the API answers, whoever is first in the VMM.
	if err := os.WriteFile(p.events, nil, 0o600); err != nil {
		return prepareError(err)
	}
	if err := os.Rename(p.log, p.log+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return prepareError(err)
	}
	if cfg.Ignition != nil && cfg.Ignition.Transport == vmm.IgnitionDisk {
		if err := configdisk.Write(p.disk, cfg.Ignition.Data); err != nil {
			return prepareError(err)
		}
	}
	return nil
}

func prepareError(err error) error {
	kind := machine.Unavailable
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		kind = machine.Exhausted
	}
	return machine.Wrap(kind, err, "prepare VMM")
}

// Cleanup removes the files of the runtime directory, and the directory if nothing else is in it. While somebody
// listens on the API's socket it refuses with machine.FailedPrecondition.
func (d *Driver) Cleanup(ctx context.Context, ref vmm.Ref) error {
	if err := checkRef(ref); err != nil {
		return err
	}
	p := pathsOf(ref)
	if err := removeStale(ctx, p.api); err != nil {
		return err
	}
	if err := remove(p.serial, p.vsock, p.events, p.disk, p.apiLock); err != nil {
		return machine.Wrap(machine.Unavailable, err, "clean up after VMM")
	}
	err := os.Remove(ref.RuntimeDir)
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
		return nil
	}
	return machine.Wrap(machine.Unavailable, err, "clean up after VMM")
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func remove(files ...string) error {
	for _, f := range files {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// removeStale removes a socket if it is proven that nobody listens on it.
func removeStale(ctx context.Context, path string) error {
	return removeSocket(ctx, path, func(net.Conn) bool { return false })
}

// removeSocket removes a socket if it is proven that nobody listens on it, or that who does is ours and left over.
func removeSocket(ctx context.Context, path string, leftOver func(net.Conn) bool) error {
	doing := "remove stale socket " + path
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return machine.Wrap(machine.Unavailable, err, doing)
	case info.Mode().Type() != fs.ModeSocket:
		return machine.Errorf(machine.FailedPrecondition, "%s: it is no socket", doing)
	}
	c, err := dial(ctx, path)
	switch {
	case err == nil:
		defer c.Close()
		if !leftOver(c) {
			return machine.Errorf(machine.FailedPrecondition, "%s: somebody listens on it", doing)
		}
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, syscall.ECONNREFUSED):
		return machine.Wrap(machine.Unavailable, err, doing)
	}
	return machine.Wrap(machine.Unavailable, remove(path), doing)
}

func dial(ctx context.Context, path string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	return dialer.DialContext(ctx, "unix", path)
}
