// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package storagedaemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/qemu/qmp"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

// Names inside a daemon; it has one of each.
const (
	nodeName   = "volume"
	exportName = "export"
	mediumName = "medium" // below the limits, where there are some
	groupName  = "limits"
)

// configureTimeout bounds what a daemon may take to open its medium; trying a passphrase takes seconds on purpose.
const configureTimeout = 50 * time.Second

// lookTimeout bounds what a daemon may take to say what it serves.
const lookTimeout = 10 * time.Second

func (m *Manager) control(ref volume.Ref) string { return filepath.Join(m.socketDir(ref), "control") }
func (m *Manager) socket(ref volume.Ref) string  { return filepath.Join(m.socketDir(ref), "disk") }

// dial connects to a daemon's control socket, waiting until it listens.
func (m *Manager) dial(ctx context.Context, ref volume.Ref, proc process.Process) (*qmp.Client, error) {
	for {
		client, err := qmp.Dial(ctx, m.control(ref), qmp.Options{})
		switch {
		case err == nil:
			if pid := client.PeerPID(); pid != 0 && pid != proc.Identity().PID {
				return nil, errors.Join(machine.Errorf(machine.Unavailable, "the control socket of the storage daemon belongs to process %d", pid), client.Close())
			}
			return client, nil
		case ended(proc):
			return nil, machine.Errorf(machine.Unavailable, "the storage daemon ended: %s", describe(proc.Exit()))
		case !qmp.Retryable(err):
			return nil, machine.Wrap(machine.Unavailable, err, "reach the storage daemon")
		}
		select {
		case <-ctx.Done():
			return nil, machine.Wrap(machine.Unavailable, ctx.Err(), "reach the storage daemon")
		case <-proc.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func describe(e process.Exit) string {
	switch {
	case !e.Known:
		return "exit status not known"
	case e.Signal != "":
		return e.Signal
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

// configure gives a daemon what it is to serve, as far as it does not have it.
func (m *Manager) configure(ctx context.Context, e Export, proc process.Process) (Served, error) {
	ctx, cancel := context.WithTimeout(ctx, configureTimeout)
	defer cancel()
	client, err := m.dial(ctx, e.Ref, proc)
	if err != nil {
		return Served{}, err
	}
	defer func() { _ = client.Close() }()
	size, there, err := nodeSize(ctx, client)
	if err != nil {
		return Served{}, refused(err, "ask the storage daemon")
	}
	if !there {
		if err := addNode(ctx, client, e); err != nil {
			return Served{}, err
		}
		if size, _, err = nodeSize(ctx, client); err != nil {
			return Served{}, refused(err, "ask the storage daemon")
		}
	}
	if err := m.addExport(ctx, client, e); err != nil {
		return Served{}, err
	}
	return Served{Socket: m.socket(e.Ref), SizeBytes: size}, nil
}

// look asks a daemon what it serves, and changes nothing.
func (m *Manager) look(ctx context.Context, e Export, proc process.Process) (served Served, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	client, err := m.dial(ctx, e.Ref, proc)
	if err != nil {
		return Served{}, false, err
	}
	defer func() { _ = client.Close() }()
	size, there, err := nodeSize(ctx, client)
	if err == nil && there {
		found, err = exported(ctx, client)
	}
	if err != nil || !found {
		return Served{}, false, refused(err, "ask the storage daemon")
	}
	return Served{Socket: m.socket(e.Ref), SizeBytes: size}, true, nil
}

// addNode opens the medium. The secrets are in the daemon only while it does.
func addNode(ctx context.Context, client *qmp.Client, e Export) error {
	names := slices.Sorted(maps.Keys(e.Secrets))
	for _, name := range names {
		err := client.Execute(ctx, "object-add", map[string]any{
			"qom-type": "secret", "id": name, "data": e.Secrets[name], "format": "base64",
		}, nil)
		if err != nil && !strings.Contains(err.Error(), "duplicate") {
			return refused(err, "give the storage daemon a key")
		}
	}
	node := maps.Clone(e.Node)
	if e.Limits != (volume.Limits{}) {
		err := client.Execute(ctx, "object-add", map[string]any{
			"qom-type": "throttle-group", "id": groupName, "limits": limits(e.Limits),
		}, nil)
		if err != nil && !strings.Contains(err.Error(), "duplicate") {
			return refused(err, "limit the volume")
		}
		node["node-name"] = mediumName
		limited := map[string]any{"driver": "throttle", "throttle-group": groupName, "file": node, "discard": "unmap"}
		if cache, ok := node["cache"]; ok { // what is written down is what is in force, whatever is inherited
			limited["cache"] = cache
		}
		node = limited
	}
	node["node-name"] = nodeName
	err := client.Execute(ctx, "blockdev-add", node, nil)
	for _, name := range names {
		_ = client.Execute(ctx, "object-del", map[string]any{"id": name}, nil) // one that is left is found as a duplicate
	}
	return refused(err, "open the volume")
}

func limits(l volume.Limits) map[string]any {
	all := map[string]any{}
	for name, value := range map[string]int64{
		"bps-total": l.TotalBytes, "bps-read": l.ReadBytes, "bps-write": l.WriteBytes,
		"iops-total": l.TotalOps, "iops-read": l.ReadOps, "iops-write": l.WriteOps,
	} {
		if value > 0 {
			all[name] = value
		}
	}
	return all
}

func exported(ctx context.Context, client *qmp.Client) (bool, error) {
	var exports []struct {
		ID string `json:"id"`
	}
	err := client.Execute(ctx, "query-block-exports", nil, &exports)
	for _, x := range exports {
		if x.ID == exportName {
			return true, err
		}
	}
	return false, err
}

func (m *Manager) addExport(ctx context.Context, client *qmp.Client, e Export) error {
	there, err := exported(ctx, client)
	if err != nil {
		return refused(err, "ask the storage daemon")
	}
	if there {
		return nil
	}
	err = client.Execute(ctx, "block-export-add", map[string]any{
		"id": exportName, "type": "vhost-user-blk", "node-name": nodeName, "writable": !e.ReadOnly, "writethrough": !e.Unsafe,
		"addr": map[string]any{"type": "unix", "path": m.socket(e.Ref)},
	}, nil)
	return refused(err, "serve the volume")
}

// nodeSize returns the size that the daemon shows of its medium.
func nodeSize(ctx context.Context, client *qmp.Client) (size int64, there bool, err error) {
	var nodes []struct {
		Name  string `json:"node-name"`
		Image struct {
			VirtualSize int64 `json:"virtual-size"`
		} `json:"image"`
	}
	if err := client.Execute(ctx, "query-named-block-nodes", map[string]any{"flat": true}, &nodes); err != nil {
		return 0, false, err
	}
	for _, n := range nodes {
		if n.Name == nodeName {
			return n.Image.VirtualSize, true, nil
		}
	}
	return 0, false, nil
}

func (m *Manager) resize(ctx context.Context, d *daemon, size int64) (Served, error) {
	ctx, cancel := context.WithTimeout(ctx, configureTimeout)
	defer cancel()
	client, err := m.dial(ctx, d.export.Ref, d.proc)
	if err != nil {
		return Served{}, err
	}
	defer func() { _ = client.Close() }()
	now, there, err := nodeSize(ctx, client)
	if err != nil || !there {
		return Served{}, refused(errors.Join(err, errors.New("no volume is open")), "ask the storage daemon")
	}
	if now < size {
		if err := client.Execute(ctx, "block_resize", map[string]any{"node-name": nodeName, "size": size}, nil); err != nil {
			return Served{}, refused(err, "resize the volume")
		}
		if now, _, err = nodeSize(ctx, client); err != nil {
			return Served{}, refused(err, "ask the storage daemon")
		}
	}
	return Served{Socket: d.served.Socket, SizeBytes: now}, nil
}

// quit asks a daemon to close everything and end.
func (m *Manager) quit(ctx context.Context, ref volume.Ref, proc process.Process) error {
	client, err := m.dial(ctx, ref, proc)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	err = client.Execute(ctx, "quit", nil, nil)
	if errors.Is(err, qmp.ErrClosed) {
		return nil
	}
	return err
}

// refused tells what the daemon itself refused from what it could not be asked.
func refused(err error, doing string) error {
	if err == nil {
		return nil
	}
	var answer *qmp.Error
	if errors.As(err, &answer) {
		return machine.Errorf(machine.FailedPrecondition, "%s: %s", doing, answer.Desc)
	}
	return machine.Wrap(machine.Unavailable, err, doing)
}
