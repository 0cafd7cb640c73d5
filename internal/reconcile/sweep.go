// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// removedFile lists the machines that this state root has known and removed, one a line. It is what proves that
// something of a machine that is not known any more is ours to remove: a state root that is new, foreign or put back to
// an older copy has no such proof.
const removedFile = "removed-machines"

// maxRemoved bounds the list; the eldest entries go.
const maxRemoved = 1 << 20 // bytes, some 28,000 machines

// noteRemoved puts a machine on the list, before it is forgotten.
func (r *Reconciler) noteRemoved(id string) error {
	r.removed.Lock()
	defer r.removed.Unlock()
	f, err := os.OpenFile(filepath.Join(r.o.StateDir, removedFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	_, err = f.WriteString(id + "\n")
	return errors.Join(err, f.Close())
}

// removedMachines reads the list, and cuts it once it is too long.
func (r *Reconciler) removedMachines() (map[string]bool, error) {
	r.removed.Lock()
	defer r.removed.Unlock()
	path := filepath.Join(r.o.StateDir, removedFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the list of removed machines: %w", err)
	}
	if len(raw) > maxRemoved {
		raw = raw[len(raw)-maxRemoved/2:]
		raw = raw[bytes.IndexByte(raw, '\n')+1:]
		temp := path + ".tmp"
		if err = os.WriteFile(temp, raw, 0o640); err == nil {
			err = os.Rename(temp, path)
		}
		if err != nil {
			return nil, fmt.Errorf("cut the list of removed machines: %w", err)
		}
	}
	ids := map[string]bool{}
	for id := range strings.Lines(string(raw)) {
		ids[strings.TrimSpace(id)] = true
	}
	return ids, nil
}

// stray is something on the host that belongs to no machine, or to a machine that does not know of it.
type stray struct {
	machine, name, plugin string
	nic                   bool // else what a volume plugin holds
}

// String names it in the log.
func (s stray) String() string {
	if s.nic {
		return s.plugin + " network interface " + s.machine + "/" + s.name
	}
	return s.plugin + " volume " + s.machine + "/" + s.name
}

// sweep looks for what belongs to nobody.
type sweep struct {
	r     *Reconciler
	since map[string]time.Time // when it was first seen, by what
	told  map[string]bool
	seen  map[string]bool // in this pass
}

// sweepAll sweeps at start and now and then, until ctx ends. It comes back soon while something is too young.
func (r *Reconciler) sweepAll(ctx context.Context) {
	s := &sweep{r: r, since: map[string]time.Time{}, told: map[string]bool{}}
	for ctx.Err() == nil {
		wait := r.o.SweepEvery
		if young := s.pass(ctx); young {
			wait = min(wait, r.o.SweepAge)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// pass looks once, and reports whether something has to grow older first.
func (s *sweep) pass(ctx context.Context) (young bool) {
	s.seen = map[string]bool{}
	ours, err := s.r.removedMachines()
	if err != nil {
		s.r.o.Logger.Warn("nothing is swept", "error", err)
		return false
	}
	known := map[string]*machine.Machine{}
	for _, m := range s.r.o.Store.List() {
		known[m.ID] = m
	}
	if !s.directories(known, ours) {
		return false
	}
	var due []stray
	for _, c := range s.strays(ctx, known) {
		switch {
		case known[c.machine] == nil && !ours[c.machine]:
			s.tell(c.String(), "something was found whose machine this state root has never known; it is left alone")
		case s.young(c.String()):
			young = true
		default:
			due = append(due, c)
		}
	}
	s.remove(ctx, known, due)
	for what := range s.since {
		if !s.seen[what] {
			delete(s.since, what)
		}
	}
	return young
}

// tell reports once what is not touched.
func (s *sweep) tell(what, why string) {
	if !s.told[what] {
		s.told[what] = true
		s.r.o.Logger.Warn(why, "what", what)
	}
}

// young reports whether something has not been seen for long enough.
func (s *sweep) young(what string) bool {
	now := s.r.o.Now()
	s.seen[what] = true
	first, ok := s.since[what]
	if !ok || first.After(now) {
		s.since[what] = now
		return true
	}
	return now.Sub(first) < s.r.o.SweepAge
}

// strays lists what plugins have on this host and no record knows.
func (s *sweep) strays(ctx context.Context, known map[string]*machine.Machine) []stray {
	var found []stray
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	for _, name := range sortedKeys(s.r.o.Networks) {
		refs, err := s.r.o.Networks[name].List(ctx)
		if err != nil {
			s.r.o.Logger.Warn("network interfaces are not swept", "plugin", name, "error", err)
			continue
		}
		for _, ref := range refs {
			if m := known[ref.MachineID]; m == nil || m.Record.NICs[ref.Name].Plugin != name {
				found = append(found, stray{machine: ref.MachineID, name: ref.Name, plugin: name, nic: true})
			}
		}
	}
	for _, p := range s.r.o.Volumes {
		holder, ok := p.(volume.Holder)
		if !ok {
			continue
		}
		refs, err := holder.Held(ctx)
		if err != nil {
			s.r.o.Logger.Warn("what volumes hold is not swept", "plugin", p.Name(), "error", err)
			continue
		}
		for _, ref := range refs {
			if m := known[ref.MachineID]; m == nil || !m.Record.Volumes[ref.Name].Held {
				found = append(found, stray{machine: ref.MachineID, name: ref.Name, plugin: p.Name()})
			}
		}
	}
	return found
}

// remove removes what is due, unless a VMM of its machine lives. What is a known machine's is left to the worker of that
// machine, so that nobody else acts on it at the same time.
func (s *sweep) remove(ctx context.Context, known map[string]*machine.Machine, due []stray) {
	if len(due) == 0 {
		return
	}
	living, err := s.r.o.Supervisor.FindAll(ctx, s.r.o.Store.ID()+"/")
	if err != nil {
		s.r.o.Logger.Warn("nothing is swept: it cannot be told which VMMs live", "error", err)
		return
	}
	used := map[string]bool{}
	for _, id := range living {
		name, _, _ := strings.Cut(strings.TrimPrefix(id.Marker, s.r.o.Store.ID()+"/"), "/")
		used[name] = true
	}
	for _, c := range due {
		switch {
		case known[c.machine] != nil:
			s.r.mu.Lock()
			s.r.strays[c.machine] = append(s.r.strays[c.machine], c)
			s.r.mu.Unlock()
			s.r.queue.Add(c.machine)
		case used[c.machine]:
			s.tell(c.String(), "something belongs to a machine that is not known any more, but whose VMM lives; it is left alone")
		default:
			s.r.clear(ctx, c)
		}
	}
}

// clear has the plugin remove a stray.
func (r *Reconciler) clear(ctx context.Context, c stray) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	var err error
	if c.nic {
		_, err = r.o.Networks[c.plugin].Delete(ctx, network.Ref{MachineID: c.machine, Name: c.name})
	} else {
		var p volume.Plugin
		if p, err = r.pluginOf(machine.VolumeRecord{Plugin: c.plugin}); err == nil {
			err = p.Release(ctx, r.goneRequest(&machine.Machine{ID: c.machine}, c.name))
		}
	}
	if err != nil {
		r.o.Logger.Warn("what belongs to nobody is not removed", "what", c.String(), "error", err)
		return
	}
	r.o.Logger.Info("what belonged to nobody was removed", "what", c.String())
}

// clearStrays removes what the sweep found of a machine and the machine still does not know of. A volume that its VMM
// may have is not touched.
func (r *Reconciler) clearStrays(ctx context.Context, m *machine.Machine) {
	r.mu.Lock()
	found := r.strays[m.ID]
	delete(r.strays, m.ID)
	r.mu.Unlock()
	for _, c := range found {
		nic, vol := m.Record.NICs[c.name], m.Record.Volumes[c.name]
		if c.nic && nic.Plugin != c.plugin && !mayHave(m, nic.Given) || !c.nic && !vol.Held && !mayHave(m, vol.Given) {
			r.clear(ctx, c)
		}
	}
}

// directories looks at the directories of machines. Those of machines that this state root has removed go; others are
// told, since their data may be all that is left of a machine. It returns false if the whole must not be swept: a store
// that is empty beside directories is not the one that they belong to.
func (s *sweep) directories(known map[string]*machine.Machine, ours map[string]bool) bool {
	base := filepath.Join(s.r.o.StateDir, "machines")
	entries, err := os.ReadDir(base)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.r.o.Logger.Warn("nothing is swept", "error", err)
		return false
	}
	for _, e := range entries {
		if len(known) == 0 && !ours[e.Name()] {
			s.tell(base, "the store knows no machine but there are directories of some; nothing is swept")
			return false
		}
	}
	for _, e := range entries {
		dir := filepath.Join(base, e.Name())
		m := known[e.Name()]
		switch {
		case m != nil:
			s.volumeDirectories(m, dir)
		case !ours[e.Name()]:
			s.tell(dir, "a directory was found whose machine is not in the store; it is left alone")
		case !s.old(dir):
		default:
			if err := os.RemoveAll(dir); err != nil {
				s.r.o.Logger.Warn("the directory of a removed machine is not removed", "dir", dir, "error", err)
				continue
			}
			s.r.o.Logger.Info("the directory of a removed machine was removed", "dir", dir)
		}
	}
	return true
}

func (s *sweep) old(dir string) bool {
	info, err := os.Lstat(dir)
	return err == nil && s.r.o.Now().Sub(info.ModTime()) >= s.r.o.SweepAge && !s.young(dir)
}

func (s *sweep) volumeDirectories(m *machine.Machine, dir string) {
	entries, err := os.ReadDir(filepath.Join(dir, "volumes"))
	if err != nil {
		return
	}
	for _, e := range entries {
		_, recorded := m.Record.Volumes[e.Name()]
		if path := filepath.Join(dir, "volumes", e.Name()); !recorded && !s.young(path) {
			s.tell(path, "the directory of a volume was found that its machine does not know of; it is left alone")
		}
	}
}
