// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package ceph

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// Times of opening an image.
const (
	monitorTimeout = 3 * time.Second  // for any one of the monitors to answer
	inspectTimeout = 15 * time.Second // for the cluster to open an image; 0.1 s when it is well
	// unlockTimeout is more for an encrypted one: LUKS2 makes trying a passphrase take seconds of a processor on purpose.
	unlockTimeout = 45 * time.Second
)

// configName is the volume's own ceph.conf, so that nothing of the host's, if it has one, has an effect.
const configName = "ceph.conf"

// config bounds what a client of Ceph waits for a cluster that does not answer when it begins. Requests of a guest wait
// for as long as it takes: they are the guest's to give up.
const config = `[global]
client mount timeout = 10
rados mon op timeout = 10
keyring = /dev/null
log file =
admin socket =
log to stderr = false
`

func writeConfig(path string) error {
	if now, err := os.ReadFile(path); err == nil && string(now) == config {
		return nil
	}
	return os.WriteFile(path, []byte(config), 0o640)
}

// inspect opens an image by qemu-img and returns its size. The keys go by pipes.
func inspect(ctx context.Context, image Image) (int64, error) {
	if err := anyMonitor(ctx, image.Monitors); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience(image))
	defer cancel()
	node, secrets := image.node()
	description, err := json.Marshal(node)
	if err != nil {
		return 0, err
	}
	args := []string{"info", "--output=json", "--force-share"}
	var pipes []*os.File
	defer func() {
		for _, f := range pipes {
			_ = f.Close()
		}
	}()
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		reader, writer, err := os.Pipe()
		if err != nil {
			return 0, machine.Wrap(machine.Unavailable, err, "open image "+image.String())
		}
		_, err = io.WriteString(writer, secrets[name]) // less than what a pipe holds
		if err := errors.Join(err, writer.Close()); err != nil {
			return 0, machine.Wrap(machine.Unavailable, err, "open image "+image.String())
		}
		pipes = append(pipes, reader)
		args = append(args, "--object", fmt.Sprintf("secret,id=%s,format=base64,file=/dev/fd/%d", name, 2+len(pipes)))
	}
	cmd := exec.CommandContext(ctx, "qemu-img", append(args, "json:"+string(description))...)
	cmd.ExtraFiles = pipes
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return 0, openError(ctx, image, err, stderr.String())
	}
	var info struct {
		VirtualSize int64 `json:"virtual-size"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &info); err != nil || info.VirtualSize <= 0 {
		return 0, machine.Errorf(machine.Unavailable, "open image %s: qemu-img told no size", image)
	}
	return info.VirtualSize, nil
}

func patience(image Image) time.Duration {
	if image.Passphrase != "" {
		return unlockTimeout
	}
	return inspectTimeout
}

// openError says in words what QEMU's block layer passes on from librbd.
func openError(ctx context.Context, image Image, err error, output string) error {
	said := strings.TrimSpace(output)
	if i := strings.LastIndex(said, "': "); i >= 0 { // what comes before repeats the arguments
		said = said[i+len("': "):]
	}
	what := "open image " + image.String()
	switch {
	case ctx.Err() != nil:
		return machine.Errorf(machine.Unavailable, "%s: the cluster did not answer within %s", what, patience(image))
	case errors.Is(err, exec.ErrNotFound):
		return machine.Errorf(machine.FailedPrecondition, "%s: qemu-img is needed and not installed", what)
	case strings.Contains(output, "Unknown driver 'rbd'"), strings.Contains(output, "Unknown protocol"):
		return machine.Errorf(machine.FailedPrecondition, "%s: QEMU's block driver for RBD is not installed (Debian: qemu-block-extra)", what)
	case strings.Contains(output, "error connecting") && (strings.Contains(output, "Permission denied") || strings.Contains(output, "Operation not permitted") || strings.Contains(output, "Operation not supported")):
		return machine.Errorf(machine.FailedPrecondition, "%s: the cluster refuses user %q with this key", what, image.User)
	case strings.Contains(output, "error connecting") && strings.Contains(output, "timed out"):
		// A monitor answered. One that does not know a user, or is shown the wrong key, lets a client wait.
		return machine.Errorf(machine.FailedPrecondition, "%s: the cluster lets user %q wait: the user or its key is wrong, or the monitors have no quorum", what, image.User)
	case strings.Contains(output, "No such file or directory"):
		return machine.Errorf(machine.FailedPrecondition, "%s: there is no such pool or image", what)
	case image.Passphrase != "" && strings.Contains(output, "ncrypt"):
		return machine.Errorf(machine.FailedPrecondition, "%s: it is not encrypted with LUKS2, or the encryption key is wrong", what)
	case said != "":
		return machine.Errorf(machine.Unavailable, "%s: %s", what, said)
	}
	return machine.Wrap(machine.Unavailable, err, what)
}

// anyMonitor waits until one of the monitors says what it is, as every Ceph daemon does at once.
func anyMonitor(ctx context.Context, monitors []string) error {
	ctx, cancel := context.WithTimeout(ctx, monitorTimeout)
	defer cancel()
	failures := make([]error, len(monitors))
	var tries sync.WaitGroup
	var once sync.Once
	ok := false
	for i, monitor := range monitors {
		tries.Go(func() {
			if failures[i] = greets(ctx, monitor); failures[i] == nil {
				once.Do(func() { ok = true; cancel() })
			}
		})
	}
	tries.Wait()
	if ok {
		return nil
	}
	return &silenceError{machine.Errorf(machine.Unavailable, "no monitor of the Ceph cluster answers (%s): %v", strings.Join(monitors, ", "), failures[0])}
}

// silenceError says that no monitor of a cluster answered, whatever the image.
type silenceError struct{ err error }

func (e *silenceError) Error() string { return e.err.Error() }
func (e *silenceError) Unwrap() error { return e.err }

func isSilence(err error) bool {
	var silent *silenceError
	return errors.As(err, &silent)
}

func greets(ctx context.Context, monitor string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", monitor)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	greeting := make([]byte, 6)
	if _, err := io.ReadFull(conn, greeting); err != nil {
		return fmt.Errorf("%s: connected, and no answer: %w", monitor, err)
	}
	if string(greeting) != "ceph v" {
		return fmt.Errorf("%s is no Ceph daemon", monitor)
	}
	return nil
}
