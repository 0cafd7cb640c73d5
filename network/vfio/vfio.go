// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package vfio takes functions of the host's PCI bus from their drivers, so that a VMM can give them to its guest, and
// gives them back. It exists because a function that a network hands out is bound to a driver of the host, and must be
// again when the guest is gone.
//
// The package must never take a function that somebody else has taken, never one whose IOMMU group holds a device in
// use by the host (a guest could reach it), and never give one back under a living VMM: its caller proves that.
package vfio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// driverName is the driver that VMMs need.
const driverName = "vfio-pci"

// bridgeClass is the PCI class of bridges, which share the IOMMU group of what is behind them and stay with the host.
const bridgeClass = "0x0604"

var addressForm = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// Options is what Functions is made of.
type Options struct {
	// Dir keeps which function was taken from which driver, a file each. It must outlive a restart; it may be lost with
	// a restart of the host, which gives every function back.
	Dir string
	Sys string // where sysfs is; default /sys
	// Write writes to a file of sysfs; default: as it is.
	Write func(path, value string) error
}

// Functions takes and gives back. Its methods may be called concurrently.
type Functions struct {
	o  Options
	mu sync.Mutex
}

// taken is the record of one function.
type taken struct {
	Address string `json:"address"`
	Owner   string `json:"owner"`
	Driver  string `json:"driver"` // before; "" = none
}

// New makes Functions.
func New(o Options) (*Functions, error) {
	if o.Dir == "" {
		return nil, errors.New("vfio: Dir is needed")
	}
	if o.Sys == "" {
		o.Sys = "/sys"
	}
	if o.Write == nil {
		o.Write = func(path, value string) error { return os.WriteFile(path, []byte(value), 0) }
	}
	return &Functions{o: o}, nil
}

// Bind takes a function on behalf of owner. Idempotent.
func (f *Functions) Bind(_ context.Context, address, owner string) error {
	if !addressForm.MatchString(address) {
		return fmt.Errorf("%q is no PCI address", address)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	before, err := f.driver(address)
	if err != nil {
		return err
	}
	record, err := f.load(address)
	switch {
	case err == nil && record.Owner != owner:
		return fmt.Errorf("PCI function %s is in use by %s", address, record.Owner)
	case err == nil:
	case !errors.Is(err, fs.ErrNotExist):
		return err
	default:
		record = taken{Address: address, Owner: owner, Driver: before}
	}
	if err := f.checkGroup(address); err != nil {
		return err
	}
	if err := f.save(record); err != nil {
		return err
	}
	if before == driverName {
		return nil
	}
	return f.rebind(address, before, driverName, driverName)
}

// Restore gives back every function of owner.
func (f *Functions) Restore(_ context.Context, owner string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries, err := os.ReadDir(f.o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		address, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || !addressForm.MatchString(address) {
			continue
		}
		record, err := f.load(address)
		if err != nil {
			return err
		}
		if record.Owner == owner {
			err = f.restore(record)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *Functions) restore(record taken) error {
	now, err := f.driver(record.Address)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the function itself is gone, with what it was part of
	case err != nil:
		return err
	case now != record.Driver && (now == driverName || now == ""): // "" after a kill on the way there or back
		override := "\n"
		if record.Driver == driverName {
			override = driverName
		}
		if err := f.rebind(record.Address, now, override, record.Driver); err != nil {
			return err
		}
	case now == record.Driver && now != driverName: // after a kill before it was taken; only the choice is to be undone
		if err := f.o.Write(filepath.Join(f.device(record.Address), "driver_override"), "\n"); err != nil {
			return fmt.Errorf("choose the driver of PCI function %s: %w", record.Address, err)
		}
	}
	return os.Remove(f.file(record.Address))
}

// rebind moves a function from one driver to another; override is what forces the kernel's choice, "\n" = nothing.
func (f *Functions) rebind(address, from, override, to string) error {
	device := f.device(address)
	if err := f.o.Write(filepath.Join(device, "driver_override"), override); err != nil {
		return fmt.Errorf("choose the driver of PCI function %s: %w", address, err)
	}
	if from != "" {
		if err := f.o.Write(filepath.Join(device, "driver", "unbind"), address); err != nil {
			return fmt.Errorf("take PCI function %s from driver %s: %w", address, from, err)
		}
	}
	if to == "" {
		return nil
	}
	if err := f.o.Write(filepath.Join(f.o.Sys, "bus/pci/drivers_probe"), address); err != nil {
		return fmt.Errorf("give PCI function %s to driver %s: %w", address, to, err)
	}
	now, err := f.driver(address)
	if err != nil {
		return err
	}
	if now != to {
		return fmt.Errorf("PCI function %s has driver %q, not %s; is the module loaded?", address, now, to)
	}
	return nil
}

// checkGroup looks at the other functions that the IOMMU cannot tell from this one.
func (f *Functions) checkGroup(address string) error {
	group := filepath.Join(f.device(address), "iommu_group", "devices")
	entries, err := os.ReadDir(group)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("PCI function %s has no IOMMU group; is the IOMMU switched on?", address)
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		class, err := os.ReadFile(filepath.Join(f.device(e.Name()), "class"))
		if err != nil {
			return err
		}
		if e.Name() == address || strings.HasPrefix(string(class), bridgeClass) {
			continue
		}
		driver, err := f.driver(e.Name())
		if err != nil {
			return err
		}
		if driver != "" && driver != driverName {
			return fmt.Errorf("PCI function %s shares its IOMMU group with %s, which driver %s uses", address, e.Name(), driver)
		}
	}
	return nil
}

// driver returns the driver a function is bound to, "" if none; fs.ErrNotExist if there is no such function.
func (f *Functions) driver(address string) (string, error) {
	if _, err := os.Stat(f.device(address)); err != nil {
		return "", fmt.Errorf("PCI function %s: %w", address, err)
	}
	target, err := os.Readlink(filepath.Join(f.device(address), "driver"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return filepath.Base(target), err
}

func (f *Functions) device(address string) string {
	return filepath.Join(f.o.Sys, "bus/pci/devices", address)
}

func (f *Functions) file(address string) string { return filepath.Join(f.o.Dir, address+".json") }

func (f *Functions) load(address string) (taken, error) {
	var record taken
	raw, err := os.ReadFile(f.file(address))
	if err != nil {
		return record, err
	}
	if err := json.Unmarshal(raw, &record); err != nil {
		return record, fmt.Errorf("read %s: %w", f.file(address), err)
	}
	return record, nil
}

// save writes the record durably, before what it is about.
func (f *Functions) save(record taken) error {
	raw, err := json.Marshal(record)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.o.Dir, 0o750); err != nil {
		return err
	}
	temp, err := os.CreateTemp(f.o.Dir, ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }() // gone already when all went well
	_, err = temp.Write(raw)
	if err = errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), f.file(record.Address))
}
