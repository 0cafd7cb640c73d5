// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package providernet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// port is what was decided for one interface.
type port struct {
	MAC      string     `json:"mac"`
	IP       netip.Addr `json:"ip,omitzero"`      // the lease, of a managed network
	Chosen   bool       `json:"chosen,omitempty"` // the address was chosen here, not by the client
	Hostname string     `json:"hostname,omitempty"`
	Queues   int        `json:"queues,omitempty"`
}

// file is a network on disk. The network's definition is in it so that guests are served to their end when it is taken
// out of the configuration.
type file struct {
	Version int                        `json:"version"`
	Network Network                    `json:"network"`
	Ports   map[string]map[string]port `json:"ports"` // by machine and interface
}

const (
	fileVersion = 1
	fileSuffix  = ".json"
)

// load reads all files. One that is damaged, or of another version, is put aside. One that the host does not let be read
// now is whole, as far as is known: that is an error, for what it says must not be decided anew.
func (p *Plugin) load() error {
	entries, err := os.ReadDir(p.o.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		key, ok := strings.CutSuffix(e.Name(), fileSuffix)
		if !ok || e.IsDir() {
			continue
		}
		path := filepath.Join(p.o.Dir, e.Name())
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parseFile(raw)
		if err != nil {
			p.log.Error("a network's file cannot be understood; its guests get their addresses anew when they are looked at",
				"file", path, "error", err)
			if err := os.Rename(path, path+".unreadable"); err != nil {
				return err
			}
			continue
		}
		seg := p.segments[key]
		if seg == nil {
			seg = newSegment(p, key, f.Network, strings.HasPrefix(key, bridgeKey))
			p.segments[key] = seg
		}
		for machine, nics := range f.Ports {
			for name, one := range nics {
				seg.ports[network.Ref{MachineID: machine, Name: name}] = one
			}
		}
	}
	return nil
}

func parseFile(raw []byte) (file, error) {
	var f file
	if err := json.Unmarshal(raw, &f); err != nil {
		return f, err
	}
	if f.Version != fileVersion {
		return f, fmt.Errorf("version %d, want %d", f.Version, fileVersion)
	}
	if !deviceName(f.Network.Bridge) {
		return f, fmt.Errorf("bridge %q", f.Network.Bridge)
	}
	return f, nil
}

// save makes the segment's ports durable. A network that was made has a file also without any, so that it is taken away
// when it is not configured any more. The caller holds the segment's lock.
func (s *segment) save() error {
	path := filepath.Join(s.plugin.o.Dir, s.key+fileSuffix)
	if len(s.ports) == 0 && s.network.Managed == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	f := file{Version: fileVersion, Network: s.network, Ports: map[string]map[string]port{}}
	for ref, one := range s.ports {
		if f.Ports[ref.MachineID] == nil {
			f.Ports[ref.MachineID] = map[string]port{}
		}
		f.Ports[ref.MachineID][ref.Name] = one
	}
	raw, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return err
	}
	return writeDurably(path, append(raw, '\n'))
}

// writeDurably replaces a file as a whole; after an error the old one is there.
func writeDurably(path string, content []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := f.Chmod(0o640); err != nil {
		return err
	}
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}
