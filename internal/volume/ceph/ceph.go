// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package ceph provides volumes kept as RBD images in a Ceph cluster, with or without LUKS2 encryption. QEMU reaches
// them itself; other hypervisors by a storage daemon that serves each image over vhost-user-blk.
//
// Before a VMM or a storage daemon is given an image, the image is opened once by a short-lived process that can be
// killed: a lost monitor, a wrong key or a missing image then costs a bounded wait and a clear error, and never a
// VMM that hangs.
//
// The package must never put a key into arguments, environment, logs or records, never open an image unencrypted for
// which a key was given, never make or shrink an image, and never remove one: the data are not this host's.
package ceph

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume/storagedaemon"
)

// Name is the plugin's name in records, and the driver in connections.
const Name = "ceph"

// Daemons serve images to VMMs that cannot reach Ceph themselves.
type Daemons interface {
	// Adopt takes up the daemon that serves an export already, without a word to the cluster.
	Adopt(ctx context.Context, e storagedaemon.Export) (served storagedaemon.Served, found bool, err error)
	Serve(ctx context.Context, e storagedaemon.Export) (storagedaemon.Served, error)
	Resize(ctx context.Context, ref volume.Ref, size int64) error
	Stop(ctx context.Context, ref volume.Ref, dir string) error
	Held(ctx context.Context) ([]volume.Ref, error)
}

// Options configure a Plugin.
type Options struct {
	// Native says that the hypervisor is a client of Ceph itself. Daemons then serves only to end those of an earlier
	// configuration.
	Native  bool
	Daemons Daemons
	// Unsafe leaves guests' flushes out (cache policy unsafe), for images served by daemons.
	Unsafe bool
	// Direct bypasses the caches of daemons (cache policies none and directsync).
	Direct bool
	// Inspect opens an image and returns its size in bytes; default: by qemu-img.
	Inspect func(ctx context.Context, image Image) (int64, error)
	Logger  *slog.Logger
	Now     func() time.Time
}

// Plugin implements volume.Plugin.
type Plugin struct {
	o Options

	gate *gate
}

var (
	_ volume.Plugin = (*Plugin)(nil)
	_ volume.Holder = (*Plugin)(nil)
)

// New makes the plugin.
func New(o Options) (*Plugin, error) {
	if !o.Native && o.Daemons == nil {
		return nil, errors.New("volume plugin ceph: Daemons are needed where the hypervisor cannot reach Ceph itself")
	}
	if o.Inspect == nil {
		o.Inspect = inspect
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Plugin{o: o, gate: newGate(o.Now)}, nil
}

// Name returns "ceph".
func (p *Plugin) Name() string { return Name }

// Supports reports whether v is a connection to Ceph.
func (p *Plugin) Supports(v machine.Volume) bool {
	return v.Connection != nil && v.LocalDisk == nil && v.Connection.Driver == Name
}

// Validate checks a connection without asking the cluster.
func (p *Plugin) Validate(field string, v machine.Volume) error {
	if err := machine.ValidateName(field+".name", v.Name); err != nil {
		return err
	}
	_, err := parse(field+".connection", v.Connection)
	return err
}

// Identity holds all that decides which bytes are reached, and how. Keys go in as a hash. Monitors are left out: they come
// and go in the life of a cluster, and an open image learns of that by itself.
func (p *Plugin) Identity(v machine.Volume) string {
	const version = "v1"
	image, err := parse("", v.Connection)
	if err != nil {
		return version + " " + v.Name
	}
	sum := sha256.New()
	for _, part := range []string{image.User, image.Key, image.Passphrase, fmt.Sprint(image.Limits)} {
		_, _ = fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	return strings.Join([]string{
		version, v.Connection.Handle, image.Pool + "/" + image.Name, hex.EncodeToString(sum.Sum(nil)[:12]),
	}, " ")
}

// Prepare opens the image once, to see how large it is, and has it served where the hypervisor cannot reach it itself. One
// that is smaller than what is asked for is made larger where it is served; QEMU does so itself. An encrypted one is left
// as it is: whoever owns it resizes it. An image that is served already, and large enough, is not asked for: a cluster that
// is away must not keep its daemon from being watched over. Errors are Invalid, FailedPrecondition for what the cluster refused, else
// Unavailable.
func (p *Plugin) Prepare(ctx context.Context, req volume.Request) (volume.Prepared, error) {
	image, err := parse("volume.connection", req.Volume.Connection)
	if err != nil {
		return volume.Prepared{}, err
	}
	if err := os.MkdirAll(req.Dir, 0o750); err != nil {
		return volume.Prepared{}, machine.Wrap(machine.Unavailable, err, "make the volume's directory")
	}
	image.Config = filepath.Join(req.Dir, configName)
	if err := writeConfig(image.Config); err != nil {
		return volume.Prepared{}, machine.Wrap(machine.Unavailable, err, "write the volume's ceph.conf")
	}
	out := volume.Prepared{
		Handle: req.Volume.Connection.Handle, Serial: machine.Serial(req.MachineID, req.Volume.Name, req.Volume.Device),
		// Some versions of librbd take the size of an encrypted image with, some without its header: one that is resized by
		// the other meaning is cut off.
		Fixed: image.Passphrase != "",
	}
	if !p.o.Native {
		return p.serve(ctx, req, image, out)
	}
	if out.SizeBytes, err = p.gate.open(ctx, image, p.o.Inspect); err != nil {
		return volume.Prepared{}, err
	}
	out.RBD = &volume.RBD{
		Monitors: image.Monitors, Pool: image.Pool, Image: image.Name, User: image.User, Key: image.Key,
		Passphrase: image.Passphrase,
	}
	out.Limits = image.Limits
	return out, nil
}

// serve has a storage daemon serve the image.
func (p *Plugin) serve(ctx context.Context, req volume.Request, image Image, out volume.Prepared) (volume.Prepared, error) {
	ref := volume.Ref{MachineID: req.MachineID, Name: req.Volume.Name}
	export := p.export(ref, req, image)
	served, found, err := p.o.Daemons.Adopt(ctx, export)
	if err != nil {
		return volume.Prepared{}, err
	}
	if found && served.SizeBytes >= volume.WantedBytes(req.Volume) {
		out.VhostUser, out.SizeBytes = served.Socket, served.SizeBytes
		return out, nil
	}
	if out.SizeBytes, err = p.gate.open(ctx, image, p.o.Inspect); err != nil {
		return volume.Prepared{}, err
	}
	served, err = p.o.Daemons.Serve(ctx, export)
	if err != nil {
		return volume.Prepared{}, err
	}
	out.VhostUser = served.Socket
	if out.Fixed {
		return out, nil
	}
	out.SizeBytes = max(out.SizeBytes, volume.WantedBytes(req.Volume)) // never less than what there is
	if served.SizeBytes < out.SizeBytes {
		err = p.o.Daemons.Resize(ctx, ref, out.SizeBytes)
	}
	return out, err
}

func (p *Plugin) export(ref volume.Ref, req volume.Request, image Image) storagedaemon.Export {
	node, secrets := image.node()
	cache := map[string]any{"direct": p.o.Direct, "no-flush": p.o.Unsafe}
	node["cache"], node["discard"] = cache, "unmap"
	return storagedaemon.Export{
		Ref: ref, Dir: req.Dir, Identity: p.Identity(req.Volume), Secrets: secrets, Unsafe: p.o.Unsafe, Node: node,
		Limits: image.Limits,
	}
}

// Release ends the storage daemon, if there is one, and removes what Prepare wrote.
func (p *Plugin) Release(ctx context.Context, req volume.Request) error {
	ref := volume.Ref{MachineID: req.MachineID, Name: req.Volume.Name}
	if p.o.Daemons != nil {
		if err := p.o.Daemons.Stop(ctx, ref, req.Dir); err != nil {
			return err
		}
	}
	for _, path := range []string{filepath.Join(req.Dir, configName), req.Dir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return machine.Wrap(machine.FailedPrecondition, err, "remove what volume "+req.Volume.Name+" left")
		}
	}
	return nil
}

// Delete is Release: the image is not this host's.
func (p *Plugin) Delete(ctx context.Context, req volume.Request) error { return p.Release(ctx, req) }

// Held returns the volumes that have a storage daemon.
func (p *Plugin) Held(ctx context.Context) ([]volume.Ref, error) {
	if p.o.Daemons == nil {
		return nil, nil
	}
	return p.o.Daemons.Held(ctx)
}

// Image is one RBD image and what it takes to open it.
type Image struct {
	Monitors   []string
	Pool, Name string
	User       string
	Key        string // base64
	Passphrase string // of its LUKS2 encryption, "" = none
	Config     string // path of a ceph.conf without secrets
	Limits     volume.Limits
}

// Names of an image's secrets in a block node.
const (
	keySecret        = "key"
	passphraseSecret = "passphrase"
)

// node is the image as QEMU's block layer describes one, and the secrets it refers to, base64.
func (i Image) node() (node map[string]any, secrets map[string]string) {
	servers := make([]map[string]any, len(i.Monitors))
	for n, monitor := range i.Monitors {
		host, port, _ := splitMonitor(monitor)
		servers[n] = map[string]any{"host": host, "port": port}
	}
	node = map[string]any{
		"driver": "rbd", "pool": i.Pool, "image": i.Name, "user": i.User, "server": servers,
		"key-secret": keySecret, "auth-client-required": []string{"cephx"}, "conf": i.Config,
	}
	secrets = map[string]string{keySecret: i.Key}
	if i.Passphrase != "" {
		node["encrypt"] = map[string]any{"format": "luks2", "key-secret": passphraseSecret}
		secrets[passphraseSecret] = base64.StdEncoding.EncodeToString([]byte(i.Passphrase))
	}
	return node, secrets
}

func (i Image) String() string { return cmp.Or(i.Pool, "?") + "/" + i.Name }
