// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package storagedaemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

// markRoom follows the state id in the marks of storage daemons; no machine id looks like it.
const markRoom = "/storage/"

// recordName is the file beside the volume that says which daemon serves it.
const recordName = "storage-daemon.json"

// logName is the file beside it that the daemon's output goes to.
const logName = "storage-daemon.log"

// tempPattern is what a record is called before it is whole.
const tempPattern = ".storage-daemon-*"

// record is written before a daemon is spawned, and again with its identity.
type record struct {
	Marker   string            `json:"marker"`
	Process  *process.Identity `json:"process,omitempty"` // nil between intent and spawn
	Identity string            `json:"identity"`          // of the export
}

func (m *Manager) prefix(ref volume.Ref) string {
	return m.o.StateID + markRoom + ref.MachineID + "/" + ref.Name + "/"
}

func (m *Manager) refOf(marker string) (volume.Ref, bool) {
	rest, ok := strings.CutPrefix(marker, m.o.StateID+markRoom)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 {
		return volume.Ref{}, false
	}
	return volume.Ref{MachineID: parts[0], Name: parts[1]}, true
}

// launch spawns a daemon that knows nothing yet. The intent is durable before.
func (m *Manager) launch(ctx context.Context, e Export) (process.Process, error) {
	binary, err := exec.LookPath(m.o.Binary)
	if err != nil {
		return nil, machine.Wrap(machine.FailedPrecondition, err, "find the storage daemon")
	}
	dir := m.socketDir(e.Ref)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700), os.MkdirAll(e.Dir, 0o750)); err != nil {
		return nil, machine.Wrap(machine.Unavailable, err, "make the storage daemon's directory")
	}
	var nonce [8]byte
	_, _ = rand.Read(nonce[:])
	r := record{Marker: m.prefix(e.Ref) + hex.EncodeToString(nonce[:]), Identity: e.Identity}
	if err := saveRecord(e.Dir, r); err != nil {
		return nil, err
	}
	proc, err := m.o.Supervisor.Start(ctx, process.Spec{
		Name:   "chp-storage-" + filepath.Base(dir),
		Marker: r.Marker,
		Argv: []string{
			binary, "--chardev", "socket,id=control,server=on,wait=off,path=" + m.control(e.Ref), "--monitor", "chardev=control",
		},
		Env:    []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"},
		Dir:    "/",
		Output: filepath.Join(e.Dir, logName),
	})
	if err != nil {
		return nil, machine.Wrap(machine.Unavailable, err, "start the storage daemon")
	}
	id := proc.Identity()
	r.Process = &id
	return proc, saveRecord(e.Dir, r)
}

// find returns the daemon that an earlier program started for a volume, nil if it is proven that there is none.
func (m *Manager) find(ctx context.Context, e Export) (*daemon, error) {
	r, err := loadRecord(e.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, machine.Wrap(machine.Unavailable, err, "read which storage daemon there is")
	}
	id := r.Process
	if id == nil {
		found, err := m.o.Supervisor.FindAll(ctx, m.prefix(e.Ref))
		if err != nil {
			return nil, machine.Wrap(machine.Unavailable, err, "find the storage daemon")
		}
		if len(found) == 0 {
			return nil, nil
		}
		first := eldest(found)
		id = &first
	}
	proc, err := m.o.Supervisor.Adopt(ctx, *id)
	if errors.Is(err, process.ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, machine.Wrap(machine.Unavailable, err, "adopt the storage daemon")
	}
	return &daemon{export: Export{Ref: e.Ref, Dir: e.Dir, Identity: r.Identity}, proc: proc}, nil
}

// eldest picks the daemon itself among the processes of one mark: what it has forked is younger.
func eldest(found []process.Identity) process.Identity {
	return slices.MinFunc(found, func(a, b process.Identity) int {
		return cmp.Or(cmp.Compare(a.StartTicks, b.StartTicks), cmp.Compare(a.PID, b.PID))
	})
}

// end ends a proven daemon: asked by its control socket, and by SIGKILL when patience is over.
func (m *Manager) end(ctx context.Context, ref volume.Ref, proc process.Process, patience time.Duration) error {
	if patience > 0 && !ended(proc) {
		quit, cancel := context.WithTimeout(ctx, patience)
		if err := m.quit(quit, ref, proc); err == nil {
			select {
			case <-proc.Done():
			case <-quit.Done():
			}
		}
		cancel()
	}
	if ended(proc) {
		return nil
	}
	if err := proc.Signal(ctx, syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return machine.Wrap(machine.Unavailable, err, "kill the storage daemon")
	}
	timer := time.NewTimer(killPatience)
	defer timer.Stop()
	select {
	case <-proc.Done():
		return nil
	case <-timer.C:
		return machine.Errorf(machine.Unavailable, "the storage daemon of volume %s was killed and is still there", ref.Name)
	case <-ctx.Done():
		return machine.Wrap(machine.Unavailable, ctx.Err(), "wait for the storage daemon's end")
	}
}

// endOthers ends what bears a volume's mark beside the daemon that is known, such as one whose start was cut short.
func (m *Manager) endOthers(ctx context.Context, ref volume.Ref) error {
	found, err := m.o.Supervisor.FindAll(ctx, m.prefix(ref))
	if err != nil {
		return machine.Wrap(machine.Unavailable, err, "find storage daemons")
	}
	for _, id := range found {
		proc, err := m.o.Supervisor.Adopt(ctx, id)
		if errors.Is(err, process.ErrGone) {
			continue
		}
		if err != nil {
			return machine.Wrap(machine.Unavailable, err, "adopt the storage daemon")
		}
		if err := m.end(ctx, ref, proc, killAtOnce); err != nil {
			return err
		}
	}
	return nil
}

// discard ends a daemon that serves nobody and removes what there is of it; nothing is removed before it is gone.
func (m *Manager) discard(ctx context.Context, e Export, proc process.Process) error {
	if err := m.end(ctx, e.Ref, proc, killAtOnce); err != nil {
		return err
	}
	return m.cleanUp(e.Ref, e.Dir)
}

func loadRecord(dir string) (record, error) {
	var r record
	raw, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return record{}, fmt.Errorf("%s: %w", filepath.Join(dir, recordName), err)
	}
	return r, nil
}

func saveRecord(dir string, r record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, tempPattern)
	if err != nil {
		return machine.Wrap(machine.Unavailable, err, "record the storage daemon")
	}
	defer func() { _ = os.Remove(temp.Name()) }() // gone already when all went well
	_, err = temp.Write(raw)
	if err = errors.Join(err, temp.Sync(), temp.Close()); err == nil {
		err = os.Rename(temp.Name(), filepath.Join(dir, recordName))
	}
	if err != nil {
		return machine.Wrap(machine.Unavailable, err, "record the storage daemon")
	}
	return nil
}

// removeRecord leaves nothing of a daemon in a volume's directory, so that it can go.
func removeRecord(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		unfinished, _ := filepath.Match(tempPattern, e.Name()) // of a program killed while it wrote
		if !unfinished && e.Name() != recordName && e.Name() != logName {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
