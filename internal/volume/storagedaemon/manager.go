// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package storagedaemon serves block devices to VMMs over vhost-user-blk, each by a qemu-storage-daemon of its own. It
// exists for hypervisors that cannot reach a storage system themselves: one daemon a volume, so that no machine's fault,
// key or load is another's.
//
// A daemon outlives this program. It is found again by its mark, which names state root, machine and volume, and by
// its proven identity, which is kept beside the volume. One that dies is started anew at once, on the same socket.
//
// The package must never serve two volumes by one daemon, never put a secret into arguments, environment or a log,
// never end a process that it cannot prove to be the daemon of that volume, and never take silence for an end.
package storagedaemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/process"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

// Export says what a daemon serves.
type Export struct {
	Ref volume.Ref
	Dir string // of the volume; keeps the daemon's identity
	// Identity is equal, as volume.SameIdentity compares, for exports that one daemon may serve without being started anew.
	Identity string
	Node     map[string]any    // arguments of blockdev-add, less the node name; refers to secrets by their names
	Secrets  map[string]string // by name, base64
	Limits   volume.Limits     // kept by the daemon
	ReadOnly bool
	// Unsafe leaves writes in the daemon's memory although the guest flushed them. Otherwise every write is flushed: the
	// daemon shows guests a device without a write cache, so that they never ask for a flush.
	Unsafe bool
}

// Served is a running export.
type Served struct {
	Socket    string
	SizeBytes int64 // as the daemon shows it
}

// Options is what a Manager is made of.
type Options struct {
	Supervisor process.Supervisor
	Binary     string // default "qemu-storage-daemon"
	StateID    string // of the state directory; part of every mark
	RuntimeDir string // sockets are below it; short, for a socket's path may have 107 bytes at most
	Logger     *slog.Logger
	// Changed is told when a daemon died, cannot be started again, or (problem empty) serves again by itself. It must not
	// block, and must not call the Manager.
	Changed func(ref volume.Ref, problem string)
	Now     func() time.Time
}

// Manager starts, finds and ends storage daemons. Its methods may be called concurrently; those for one volume wait for
// each other, and those for different ones never do.
type Manager struct {
	o Options

	mu     sync.Mutex
	known  map[volume.Ref]*daemon
	turns  map[volume.Ref]*turn
	closed bool
	stop   context.CancelFunc
	ctx    context.Context // ends with Close
	wait   sync.WaitGroup
}

// daemon is one storage daemon that this process holds.
type daemon struct {
	export Export
	proc   process.Process
	served Served
	unhold context.CancelFunc // ends its watch
}

// turn lets one caller at a time act on a volume.
type turn struct {
	free  chan struct{} // holds one token
	users int
}

// New makes a Manager; Close lets go of all daemons without touching them.
func New(o Options) (*Manager, error) {
	if o.Supervisor == nil || o.StateID == "" || o.RuntimeDir == "" {
		return nil, errors.New("storagedaemon: Supervisor, StateID and RuntimeDir are needed")
	}
	if o.Binary == "" {
		o.Binary = "qemu-storage-daemon"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Changed == nil {
		o.Changed = func(volume.Ref, string) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Manager{o: o, known: map[volume.Ref]*daemon{}, turns: map[volume.Ref]*turn{}, ctx: ctx, stop: cancel}, nil
}

// Close ends supervision. The daemons serve on.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.stop()
	m.wait.Wait()
}

// Serve returns the export's socket, starting a daemon or finding the one there is. FailedPrecondition when the medium
// refused, or when a daemon still serves something else under this name: Stop comes first, once the VMM let go.
func (m *Manager) Serve(ctx context.Context, e Export) (Served, error) {
	done, err := m.take(ctx, e.Ref)
	if err != nil {
		return Served{}, err
	}
	defer done()
	return m.serve(ctx, e)
}

// serve is Serve for whoever has the volume's turn.
func (m *Manager) serve(ctx context.Context, e Export) (Served, error) {
	d, err := m.living(ctx, e)
	if err != nil {
		return Served{}, err
	}
	fresh := d == nil
	if fresh {
		proc, err := m.launch(ctx, e)
		if err != nil {
			return Served{}, err
		}
		d = &daemon{proc: proc}
	}
	served, err := m.configure(ctx, e, d.proc)
	if err != nil && fresh { // it serves nobody yet: it goes, and the next try begins anew
		return Served{}, errors.Join(err, m.discard(context.WithoutCancel(ctx), e, d.proc))
	}
	if err != nil {
		return Served{}, err
	}
	m.serves(d, e, served)
	return served, nil
}

// serves takes up a daemon with what it serves.
func (m *Manager) serves(d *daemon, e Export, served Served) {
	m.mu.Lock()
	d.export, d.served = e, served
	m.mu.Unlock()
	m.hold(e.Ref, d)
}

// living returns the daemon of a volume, nil if there is none. FailedPrecondition when it serves something else.
func (m *Manager) living(ctx context.Context, e Export) (*daemon, error) {
	d := m.held(e.Ref)
	if d == nil || ended(d.proc) {
		found, err := m.find(ctx, e) // also in place of one that ended: what followed it may not have been recorded
		if err != nil || found == nil || ended(found.proc) {
			return nil, err
		}
		d = found
	}
	m.mu.Lock()
	before := d.export.Identity
	m.mu.Unlock()
	if before == e.Identity {
		return d, nil
	}
	if before == "" || !volume.SameIdentity(before, e.Identity) {
		return nil, machine.Errorf(machine.FailedPrecondition, "a storage daemon still serves an earlier volume %s", e.Ref.Name)
	}
	id := d.proc.Identity()
	if err := saveRecord(e.Dir, record{Marker: id.Marker, Process: &id, Identity: e.Identity}); err != nil {
		m.o.Logger.Warn("what a storage daemon serves is not recorded anew", "machine", e.Ref.MachineID, "volume", e.Ref.Name, "error", err)
	}
	return d, nil
}

// Adopt takes up the daemon that serves an export already, and watches over it from now on; the medium is not asked for.
// found is false if there is none, or one that does not serve yet: that is for Serve. The errors are those of Serve.
func (m *Manager) Adopt(ctx context.Context, e Export) (served Served, found bool, err error) {
	done, err := m.take(ctx, e.Ref)
	if err != nil {
		return Served{}, false, err
	}
	defer done()
	d, err := m.living(ctx, e)
	if err != nil || d == nil {
		return Served{}, false, err
	}
	m.serves(d, e, Served{Socket: m.socket(e.Ref)}) // first of all: it may be too busy to answer, and die of that
	served, found, err = m.look(ctx, e, d.proc)
	if found {
		m.serves(d, e, served)
	}
	return served, found, err
}

// Resize makes the medium size bytes long, through the daemon that has it open. It never shrinks one.
func (m *Manager) Resize(ctx context.Context, ref volume.Ref, size int64) error {
	done, err := m.take(ctx, ref)
	if err != nil {
		return err
	}
	defer done()
	d := m.held(ref)
	if d == nil || ended(d.proc) {
		return machine.Errorf(machine.Unavailable, "no storage daemon serves volume %s", ref.Name)
	}
	served, err := m.resize(ctx, d, size)
	if err == nil {
		m.mu.Lock()
		d.served = served
		m.mu.Unlock()
	}
	return err
}

// Stop ends the daemon of a volume and removes what it left; nil if there is none. Only after the VMM let go.
func (m *Manager) Stop(ctx context.Context, ref volume.Ref, dir string) error {
	d := m.release(ref) // before the turn: a watch that is starting it again gives up
	done, err := m.take(ctx, ref)
	if err != nil {
		return err
	}
	defer done()
	if late := m.release(ref); late != nil {
		d = late
	}
	if d == nil {
		if d, err = m.find(ctx, Export{Ref: ref, Dir: dir}); err != nil {
			return err
		}
	}
	if d != nil {
		if err := m.end(ctx, ref, d.proc, quitPatience); err != nil {
			return err
		}
	}
	if err := m.endOthers(ctx, ref); err != nil {
		return err
	}
	return m.cleanUp(ref, dir)
}

// take waits for a volume's turn; done gives it back.
func (m *Manager) take(ctx context.Context, ref volume.Ref) (done func(), err error) {
	m.mu.Lock()
	t := m.turns[ref]
	if t == nil {
		t = &turn{free: make(chan struct{}, 1)}
		t.free <- struct{}{}
		m.turns[ref] = t
	}
	t.users++
	m.mu.Unlock()
	leave := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(m.turns, ref)
		}
	}
	select {
	case <-t.free:
		return func() { t.free <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, machine.Wrap(machine.Unavailable, ctx.Err(), "wait for the storage daemon of volume "+ref.Name)
	}
}

// Held returns the volumes for which a daemon of this state root lives, by their marks.
func (m *Manager) Held(ctx context.Context) ([]volume.Ref, error) {
	found, err := m.o.Supervisor.FindAll(ctx, m.o.StateID+markRoom)
	if err != nil {
		return nil, fmt.Errorf("find storage daemons: %w", err)
	}
	var refs []volume.Ref
	seen := map[volume.Ref]bool{}
	for _, id := range found {
		if ref, ok := m.refOf(id.Marker); ok && !seen[ref] {
			seen[ref] = true
			refs = append(refs, ref)
		}
	}
	return refs, nil
}

func ended(p process.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

func (m *Manager) held(ref volume.Ref) *daemon {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known[ref]
}

// hold takes a daemon up and watches over it from now on.
func (m *Manager) hold(ref volume.Ref, d *daemon) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.known[ref]
	if m.closed || before == d {
		return
	}
	if before != nil {
		before.unhold()
	}
	m.known[ref] = d
	ctx, cancel := context.WithCancel(m.ctx)
	d.unhold = cancel
	m.wait.Go(func() { m.watch(ctx, ref, d) })
}

// release lets go of a daemon, nil if none is held.
func (m *Manager) release(ref volume.Ref) *daemon {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.known[ref]
	if d != nil {
		d.unhold()
		delete(m.known, ref)
	}
	return d
}

// watch has a daemon that died followed by another, as long as nobody asked for its end: the VMM reconnects to the
// socket by itself, and its guest's requests wait meanwhile.
func (m *Manager) watch(ctx context.Context, ref volume.Ref, d *daemon) {
	defer d.unhold()
	select {
	case <-ctx.Done():
		return
	case <-d.proc.Done():
	}
	if ctx.Err() != nil {
		return
	}
	m.o.Logger.Error("a storage daemon ended; it is started again", "machine", ref.MachineID, "volume", ref.Name,
		"reason", describe(d.proc.Exit()))
	m.o.Changed(ref, "its storage daemon ended ("+describe(d.proc.Exit())+"); it is started again")
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, maxPause) {
		err := m.again(ctx, ref, d)
		if ctx.Err() != nil || err == nil {
			if m.ctx.Err() == nil && m.held(ref) != nil {
				m.o.Changed(ref, "")
			}
			return
		}
		m.o.Logger.Error("a storage daemon could not be started again", "machine", ref.MachineID, "volume", ref.Name, "error", err, "again", pause)
		m.o.Changed(ref, "its storage daemon could not be started again: "+err.Error())
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// again starts a daemon in place of one that died, unless somebody else has done so.
func (m *Manager) again(ctx context.Context, ref volume.Ref, d *daemon) error {
	limited, cancel := context.WithTimeout(ctx, restartTimeout)
	defer cancel()
	done, err := m.take(limited, ref)
	if err != nil {
		return err
	}
	defer done()
	if m.held(ref) != d {
		return nil
	}
	m.mu.Lock()
	export := d.export
	m.mu.Unlock()
	_, err = m.serve(limited, export)
	return err
}

// Times of supervision.
const (
	maxPause       = 30 * time.Second
	restartTimeout = 60 * time.Second
	quitPatience   = 5 * time.Second // a daemon that is well closes its volume in 0.1 s
	killPatience   = 10 * time.Second
	killAtOnce     = 0
)

// socketDir is the volume's own directory for sockets.
func (m *Manager) socketDir(ref volume.Ref) string {
	sum := sha256.Sum256([]byte(ref.MachineID + "\x00" + ref.Name))
	return filepath.Join(m.o.RuntimeDir, hex.EncodeToString(sum[:8]))
}

func (m *Manager) cleanUp(ref volume.Ref, dir string) error {
	return errors.Join(os.RemoveAll(m.socketDir(ref)), removeRecord(dir))
}
