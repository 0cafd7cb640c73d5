// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// slotsFile is in the state directory, where it outlives VMMs and reboots of the host.
const slotsFile = "slots.json"

// slots says which root port each device had when it was last plugged in, so that its PCI address, and with it what
// guests derive from that (names of network interfaces, /dev/disk/by-path), stays when other devices come and go
// before the next VMM starts. It is a preference and no more: a machine without the file gets its ports in order.
type slots struct {
	// Boot is the disk that firmware starts from, empty with a kernel of its own.
	Boot  string         `json:"boot,omitempty"`
	Ports map[string]int `json:"ports"`
}

// loadSlots reads the file. What is missing or broken is no preference.
func loadSlots(dir string) (slots, error) {
	s := slots{Ports: map[string]int{}}
	raw, err := os.ReadFile(filepath.Join(dir, slotsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read the places of devices: %w", err)
	}
	var read slots
	if broken := json.Unmarshal(raw, &read); broken == nil && read.Ports != nil {
		s = read
	}
	return s, nil
}

func (s slots) save(dir string) error {
	raw, err := json.Marshal(s)
	if err == nil {
		err = writeFile(filepath.Join(dir, slotsFile), raw)
	}
	if err != nil {
		return fmt.Errorf("write the places of devices: %w", err)
	}
	return nil
}

// arrange returns the places for a machine that starts anew with count ports: those that its devices had, and the
// lowest free ones in the machine's order for the others.
func (s slots) arrange(cfg vmm.Config, count int) slots {
	out := slots{Ports: map[string]int{}}
	if cfg.Boot.Kernel == "" && len(cfg.Disks) > 0 {
		out.Boot = cfg.Disks[0].ID
	}
	used := map[int]bool{}
	ids := deviceIDs(cfg)
	for _, id := range ids {
		if port, ok := s.Ports[id]; ok && port >= 0 && port < count && !used[port] {
			out.Ports[id], used[port] = port, true
		}
	}
	next := 0
	for _, id := range ids {
		if _, ok := out.Ports[id]; ok {
			continue
		}
		for used[next] {
			next++
		}
		out.Ports[id], used[next] = next, true
	}
	return out
}

// choose picks a free port for a device: the one that it had, else the lowest one that no other device has a claim to,
// else the lowest one. -1 if none is free.
func (s slots) choose(id string, free []int) int {
	claimed := map[int]bool{}
	for other, port := range s.Ports {
		if other != id {
			claimed[port] = true
		}
	}
	if port, ok := s.Ports[id]; ok && slices.Contains(free, port) {
		return port
	}
	for _, port := range free {
		if !claimed[port] {
			return port
		}
	}
	if len(free) > 0 {
		return free[0]
	}
	return -1
}

// claim gives a port to a device, and takes it from any other.
func (s *slots) claim(id string, port int) {
	maps.DeleteFunc(s.Ports, func(_ string, p int) bool { return p == port })
	s.Ports[id] = port
}

// deviceIDs are disks, then network interfaces, in the guest's order.
func deviceIDs(cfg vmm.Config) []string {
	var ids []string
	for _, d := range cfg.Disks {
		ids = append(ids, d.ID)
	}
	for _, n := range cfg.NICs {
		ids = append(ids, n.ID)
	}
	return ids
}
