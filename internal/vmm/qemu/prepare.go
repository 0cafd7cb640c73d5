// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
)

// Prepare makes the machine's directories, removes sockets of an earlier run,
// writes the Ignition file and the first copy of the UEFI variables, and returns the
// command.
func (d *Driver) Prepare(ctx context.Context, cfg vmm.Config) (process.Spec, error) {
	var none process.Spec
	if err := ctx.Err(); err != nil {
		return none, err
	}
	if err := d.Validate(cfg); err != nil {
		return none, err
	}
	for _, dir := range []string{cfg.RuntimeDir, cfg.StateDir} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return none, fmt.Errorf("make machine directory: %w", err)
		}
	}
	if err := removeSockets(cfg.RuntimeDir); err != nil {
		return none, err
	}
	blocks, err := blockDevices(cfg.Disks)
	if err != nil {
		return none, err
	}
	if cfg.Ignition != nil {
		if err := writeFile(filepath.Join(cfg.RuntimeDir, ignitionFile), cfg.Ignition.Data); err != nil {
			return none, fmt.Errorf("write Ignition payload: %w", err)
		}
	}
	if cfg.Boot.Kernel == "" && d.o.Firmware.Vars != "" {
		if err := copyOnce(d.o.Firmware.Vars, filepath.Join(cfg.StateDir, uefiVars)); err != nil {
			return none, fmt.Errorf("copy UEFI variables: %w", err)
		}
	}
	places, err := d.place(cfg)
	if err != nil {
		return none, err
	}
	args, err := d.commandLine(cfg, places.Ports, func(path string) bool { return blocks[path] })
	if err != nil {
		return none, err
	}
	return process.Spec{Name: "chp-vmm-" + cfg.MachineID, Argv: args, Dir: cfg.RuntimeDir}, nil
}

// Cleanup removes what Prepare made in the runtime directory.
func (d *Driver) Cleanup(ctx context.Context, ref vmm.Ref) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := validateRef(ref); err != nil {
		return err
	}
	if err := removeSockets(ref.RuntimeDir); err != nil {
		return err
	}
	for _, name := range []string{ignitionFile, ignitionFile + tempSuffix, rbdConfigFile, rbdConfigFile + tempSuffix} {
		if err := os.Remove(filepath.Join(ref.RuntimeDir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("clean up runtime directory: %w", err)
		}
	}
	// Files of others keep the directory; they are not ours to remove.
	_ = os.Remove(ref.RuntimeDir)
	return nil
}

// removeSockets removes our sockets and nothing that is not a socket.
func removeSockets(dir string) error {
	for _, name := range []string{qmpSocket, operatorSocket, serialSocket, agentSocket} {
		path := filepath.Join(dir, name)
		st, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && st.Mode().Type() != fs.ModeSocket {
			err = fmt.Errorf("%s is not a socket", path)
		}
		if err == nil {
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove stale socket: %w", err)
		}
	}
	return nil
}

// place arranges the devices of a machine that is about to start, and writes that down.
func (d *Driver) place(cfg vmm.Config) (slots, error) {
	old, err := loadSlots(cfg.StateDir)
	if err != nil {
		return slots{}, err
	}
	places := old.arrange(cfg, d.portCount(cfg))
	return places, places.save(cfg.StateDir)
}

// blockDevices tells which disks are block devices. A disk that is missing or cannot be used as it should is found
// here, with a better message than QEMU's.
func blockDevices(disks []vmm.Disk) (map[string]bool, error) {
	blocks := map[string]bool{}
	for _, disk := range disks {
		block, err := checkMedium(disk)
		if err != nil {
			return nil, err
		}
		blocks[disk.Path] = block
	}
	return blocks, nil
}

const tempSuffix = ".tmp"

// writeFile replaces a file as a whole. It need not survive a crash of the
// host: the process that reads it does not either.
func writeFile(path string, data []byte) error {
	temp := path + tempSuffix
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// copyOnce copies a file unless the target is there. The target is complete
// and on disk when it appears.
func copyOnce(from, to string) error {
	if _, err := os.Lstat(to); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	temp := to + tempSuffix
	dst, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if err == nil {
		err = dst.Sync()
	}
	if closeErr := dst.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temp, to)
	}
	if err != nil {
		_ = os.Remove(temp)
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
