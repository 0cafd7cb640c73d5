// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package localdisk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

// Names of an overlay's files. The base is a hard link to the cached image: the cache may drop its name, and the bytes
// stay as long as a disk needs them.
const (
	overlayName     = "disk.qcow2"
	overlayTempName = "disk.qcow2.new"
	baseName        = "base.raw"
)

// toolTimeout bounds qemu-img, which writes a few hundred kilobytes.
const toolTimeout = 30 * time.Second

// errNoClone says that the file system cannot share blocks, and that an overlay is wanted then.
var errNoClone = errors.New("the file system cannot clone files")

var errNoTool = machine.Errorf(machine.FailedPrecondition, "overlays need qemu-img, which is not installed (Debian: qemu-utils)")

// createOverlay makes a disk that holds only what differs from the image. Without hard links (the cache is on another
// file system) it answers errors.ErrUnsupported, and the image has to be copied.
func (p *Plugin) createOverlay(ctx context.Context, req volume.Request, size int64) error {
	if _, err := exec.LookPath("qemu-img"); err != nil { // before the image gets a link in vain
		return errNoTool
	}
	base, temp := filepath.Join(req.Dir, baseName), filepath.Join(req.Dir, overlayTempName)
	for _, leftover := range []string{temp, base} { // of a killed call
		if err := os.Remove(leftover); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Link(req.Image.Path, base); err != nil {
		p.log.Debug("no hard link to the image, so it is copied", "error", err)
		return errors.ErrUnsupported
	}
	_, err := p.tool(ctx, "create", "-q", "-f", "qcow2", "-F", "raw", "-b", baseName, temp, strconv.FormatInt(size, 10))
	if err == nil {
		err = os.Chmod(temp, fileMode)
	}
	if err == nil {
		err = syncFile(temp)
	}
	if err == nil {
		err = os.Rename(temp, filepath.Join(req.Dir, overlayName))
	}
	if err != nil {
		_, _ = os.Remove(temp), os.Remove(base)
	}
	return err
}

// lockedText is what QEMU says of a file that another process has open for writing ("Failed to get "write" lock").
const lockedText = `"write" lock`

// growOverlay enlarges an overlay that no VMM has open. One that is open is its VMM's to enlarge.
func (p *Plugin) growOverlay(ctx context.Context, path string, have, want int64) (int64, error) {
	if want <= have {
		return have, nil
	}
	output, err := p.tool(ctx, "resize", "-q", "-f", "qcow2", path, strconv.FormatInt(want, 10))
	if err != nil && strings.Contains(output, lockedText) {
		return have, nil
	}
	if err == nil {
		err = syncFile(path)
	}
	if err != nil {
		return 0, err
	}
	p.log.Info("local disk grown", "path", path, "from", have, "to", want)
	return want, nil
}

func (p *Plugin) tool(ctx context.Context, args ...string) (output string, err error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-img", args...)
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errNoTool
	}
	if err != nil {
		err = fmt.Errorf("qemu-img %s: %w: %s", args[0], err, strings.TrimSpace(out.String()))
	}
	return out.String(), err
}

// overlaySize reads the size that a guest sees from an overlay's header: 8 bytes, big-endian, at offset 24 (QEMU,
// docs/interop/qcow2).
func overlaySize(path string) (int64, error) {
	if _, err := diskSize(path); err != nil { // must be a regular file
		return 0, err
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	header := make([]byte, 32)
	if _, err := f.ReadAt(header, 0); err != nil {
		return 0, err
	}
	if string(header[:4]) != "QFI\xfb" {
		return 0, machine.Errorf(machine.FailedPrecondition, "%s is no qcow2 file", path)
	}
	return int64(binary.BigEndian.Uint64(header[24:])), nil
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
