// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vfio

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	first  = "0000:3b:02.1"
	second = "0000:3b:02.2"
	bridge = "0000:3a:00.0"
)

// kernel is an imaginary sysfs that answers to writes as the kernel does.
type kernel struct {
	t       *testing.T
	sys     string
	natural map[string]string // the driver each function has without an override
	deaf    bool              // the module of the wanted driver is not loaded
}

func newKernel(t *testing.T) *kernel {
	k := &kernel{t: t, sys: t.TempDir(), natural: map[string]string{}}
	k.add(first, "0x020000", "mlx5_core", "7")
	k.add(second, "0x020000", "", "7")
	k.add(bridge, "0x060400", "pcieport", "7")
	return k
}

func (k *kernel) device(address string) string {
	return filepath.Join(k.sys, "bus/pci/devices", address)
}

func (k *kernel) add(address, class, driver, group string) {
	k.t.Helper()
	members := filepath.Join(k.sys, "kernel/iommu_groups", group, "devices")
	for _, dir := range []string{k.device(address), members} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			k.t.Fatal(err)
		}
	}
	err := errors.Join(os.WriteFile(filepath.Join(k.device(address), "class"), []byte(class+"\n"), 0o644),
		os.Symlink(filepath.Dir(members), filepath.Join(k.device(address), "iommu_group")),
		os.Symlink(k.device(address), filepath.Join(members, address)))
	if err != nil {
		k.t.Fatal(err)
	}
	k.natural[address] = driver
	k.bind(address, driver)
}

func (k *kernel) bind(address, driver string) {
	link := filepath.Join(k.device(address), "driver")
	_ = os.Remove(link)
	if driver == "" {
		return
	}
	dir := filepath.Join(k.sys, "bus/pci/drivers", driver)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(dir, link)); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) driver(address string) string {
	target, _ := os.Readlink(filepath.Join(k.device(address), "driver"))
	return strings.TrimPrefix(filepath.Base(target), ".")
}

func (k *kernel) write(path, value string) error {
	switch filepath.Base(path) {
	case "driver_override":
		return os.WriteFile(path, []byte(value), 0o644)
	case "unbind":
		k.bind(value, "")
	case "drivers_probe":
		override := k.override(value)
		switch {
		case override == "":
			k.bind(value, k.natural[value])
		case !k.deaf:
			k.bind(value, override)
		}
	}
	return nil
}

func (k *kernel) override(address string) string {
	raw, _ := os.ReadFile(filepath.Join(k.device(address), "driver_override"))
	return strings.TrimSpace(string(raw))
}

func (k *kernel) functions(dir string) *Functions {
	k.t.Helper()
	f, err := New(Options{Dir: dir, Sys: k.sys, Write: k.write})
	if err != nil {
		k.t.Fatal(err)
	}
	return f
}

func TestAFunctionIsTakenAndGivenBack(t *testing.T) {
	k, dir := newKernel(t), filepath.Join(t.TempDir(), "functions")
	for range 2 {
		if err := k.functions(dir).Bind(t.Context(), first, "m/n"); err != nil || k.driver(first) != driverName {
			t.Fatalf("Bind = %v, driver %s", err, k.driver(first))
		}
	}
	for range 2 { // by another value, as after a restart
		if err := k.functions(dir).Restore(t.Context(), "m/n"); err != nil || k.driver(first) != "mlx5_core" {
			t.Fatalf("Restore = %v, driver %s", err, k.driver(first))
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("records left: %v", left)
	}
}

func TestAKillOnTheWayLosesNoFunction(t *testing.T) {
	for _, name := range []string{"driver_override", "unbind", "drivers_probe"} {
		t.Run("before "+name+" is written", func(t *testing.T) {
			k, dir := newKernel(t), t.TempDir()
			killed := errors.New("killed")
			dying, err := New(Options{Dir: dir, Sys: k.sys, Write: func(path, value string) error {
				if filepath.Base(path) == name {
					return killed
				}
				return k.write(path, value)
			}})
			if err != nil {
				t.Fatal(err)
			}
			if err := dying.Bind(t.Context(), first, "m/n"); !errors.Is(err, killed) {
				t.Fatalf("Bind = %v", err)
			}
			if err := k.functions(dir).Restore(t.Context(), "m/n"); err != nil || k.driver(first) != "mlx5_core" || k.override(first) != "" {
				t.Errorf("Restore = %v, driver %q, override %q", err, k.driver(first), k.override(first))
			}
			if err := errors.Join(k.functions(dir).Bind(t.Context(), first, "m/n"), k.functions(dir).Bind(t.Context(), first, "m/n")); err != nil {
				t.Fatal(err)
			}
			if err := dying.Restore(t.Context(), "m/n"); !errors.Is(err, killed) {
				t.Fatalf("Restore = %v", err)
			}
			if err := k.functions(dir).Restore(t.Context(), "m/n"); err != nil || k.driver(first) != "mlx5_core" {
				t.Errorf("Restore = %v, driver %q", err, k.driver(first))
			}
		})
	}
}

func TestAFunctionOfSomebodyElseIsLeftAlone(t *testing.T) {
	k, dir := newKernel(t), t.TempDir()
	f := k.functions(dir)
	if err := f.Bind(t.Context(), first, "m/n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Bind(t.Context(), first, "m/other"); err == nil || !strings.Contains(err.Error(), "in use by m/n") {
		t.Errorf("Bind for another = %v", err)
	}
	if err := f.Restore(t.Context(), "m/other"); err != nil || k.driver(first) != driverName {
		t.Errorf("Restore of another = %v, driver %s", err, k.driver(first))
	}
}

func TestAnIOMMUGroupThatTheHostUsesIsRefused(t *testing.T) {
	k := newKernel(t)
	k.bind(second, "nvme")
	err := k.functions(t.TempDir()).Bind(t.Context(), first, "m/n")
	if err == nil || !strings.Contains(err.Error(), second) || k.driver(first) != "mlx5_core" {
		t.Errorf("Bind = %v, driver %s", err, k.driver(first))
	}
}

func TestWhatWasWithVFIOBeforeStaysThere(t *testing.T) {
	k, dir := newKernel(t), t.TempDir()
	k.bind(first, driverName)
	f := k.functions(dir)
	if err := errors.Join(f.Bind(t.Context(), first, "m/n"), f.Restore(t.Context(), "m/n")); err != nil || k.driver(first) != driverName {
		t.Errorf("%v, driver %s", err, k.driver(first))
	}
}

func TestBadAndMissingFunctionsAreNamed(t *testing.T) {
	k := newKernel(t)
	for address, want := range map[string]string{
		"../../etc": "no PCI address", "3b:02.1": "no PCI address", "0000:ff:00.0": "no such file",
	} {
		if err := k.functions(t.TempDir()).Bind(t.Context(), address, "m/n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", address, err)
		}
	}
	k.deaf = true
	if err := k.functions(t.TempDir()).Bind(t.Context(), first, "m/n"); err == nil || !strings.Contains(err.Error(), "module") {
		t.Errorf("without the module: %v", err)
	}
}

func TestAFunctionThatIsGoneCannotBeGivenBackAndIsForgotten(t *testing.T) {
	k, dir := newKernel(t), t.TempDir()
	f := k.functions(dir)
	if err := f.Bind(t.Context(), first, "m/n"); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(k.device(first)); err != nil {
		t.Fatal(err)
	}
	if err := f.Restore(t.Context(), "m/n"); err != nil {
		t.Error(err)
	}
}
