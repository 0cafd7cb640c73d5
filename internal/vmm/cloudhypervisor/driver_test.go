// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/configdisk"
)

func options() cloudhypervisor.Options {
	return cloudhypervisor.Options{Binary: "/usr/bin/cloud-hypervisor", Firmware: "/usr/share/CLOUDHV.fd", Arch: "amd64"}
}

func TestVersionsAreReadAndTheFloorHeld(t *testing.T) {
	for text, want := range map[string]struct {
		major int
		kind  machine.Kind // of CheckVersion, Unknown if it passes
	}{
		"cloud-hypervisor v53.0-dirty":         {53, machine.Unknown},
		"cloud-hypervisor v52.0":               {52, machine.Unknown},
		"v53.0-12-gabcdef":                     {53, machine.Unknown},
		"54.0.0":                               {54, machine.Unknown},
		"52.0.0":                               {52, machine.Unknown},
		"51.2.0":                               {51, machine.FailedPrecondition},
		"cloud-hypervisor v51.1.0":             {51, machine.FailedPrecondition},
		"":                                     {0, machine.Invalid},
		"QEMU emulator version 10.0":           {0, machine.Invalid},
		"cloud-hypervisor v99999999999999.0.1": {0, machine.Invalid},
	} {
		t.Run(text, func(t *testing.T) {
			major, err := cloudhypervisor.ParseVersion(text)
			if major != want.major || (err != nil) != (want.kind == machine.Invalid) {
				t.Errorf("version %d, error %v, want %d", major, err, want.major)
			}
			err = cloudhypervisor.CheckVersion(text)
			if (err != nil) != (want.kind != machine.Unknown) || machine.KindOf(err) != want.kind {
				t.Errorf("error %v, want kind %v", err, want.kind)
			}
		})
	}
}

func TestAnOldBinaryIsRefusedWithTheFloor(t *testing.T) {
	o := options()
	o.Version = "cloud-hypervisor v51.1.0"
	_, err := cloudhypervisor.New(o)
	if !machine.IsKind(err, machine.FailedPrecondition) || !strings.Contains(err.Error(), "52") {
		t.Errorf("error is %v, want one that names version 52", err)
	}
}

func TestAnOldVMMIsRefusedWithTheFloor(t *testing.T) {
	ref := newRef(t)
	if err := os.Mkdir(ref.RuntimeDir, 0o750); err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"build_version":"v51.1.0","version":"51.1.0","pid":7}`)
	})}
	l := listen(t, filepath.Join(ref.RuntimeDir, "api.sock"))
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := newDriver(t, options()).Connect(ctx, ref)
	if !machine.IsKind(err, machine.FailedPrecondition) || !strings.Contains(err.Error(), "52") {
		t.Errorf("error is %v, want one that names version 52", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, change := range map[string]func(*cloudhypervisor.Options){
		"no binary":          func(o *cloudhypervisor.Options) { o.Binary = "" },
		"relative binary":    func(o *cloudhypervisor.Options) { o.Binary = "cloud-hypervisor" },
		"relative firmware":  func(o *cloudhypervisor.Options) { o.Firmware = "CLOUDHV.fd" },
		"relative rule":      func(o *cloudhypervisor.Options) { o.LandlockPaths = []string{"disks"} },
		"other architecture": func(o *cloudhypervisor.Options) { o.Arch = "riscv64" },
		"short timeout":      func(o *cloudhypervisor.Options) { o.Timeouts.Long = time.Second },
		"no version":         func(o *cloudhypervisor.Options) { o.Version = "what" },
	} {
		t.Run(name, func(t *testing.T) {
			o := options()
			change(&o)
			if _, err := cloudhypervisor.New(o); !machine.IsKind(err, machine.Invalid) {
				t.Errorf("error is %v, want invalid", err)
			}
		})
	}
}

func TestCapabilitiesFollowArchitectureAndFirmware(t *testing.T) {
	c := newDriver(t, options()).Capabilities()
	if !slices.Equal(c.Ignition, []vmm.IgnitionTransport{vmm.IgnitionSMBIOS, vmm.IgnitionDisk}) || c.SMBIOSMaxBytes != 30<<10 {
		t.Errorf("amd64: %+v", c)
	}
	if !c.Firmware || !c.DirectKernel || !c.TapNIC || c.IsolatedNIC || c.UserNetwork {
		t.Errorf("amd64: %+v", c)
	}
	// The host bridge, random numbers and panics take three of 32 slots, a config disk one.
	if most := c.MaxDisks + c.MaxNICs + 4; most > 32 {
		t.Errorf("%d disks and %d network interfaces do not fit", c.MaxDisks, c.MaxNICs)
	}
	o := options()
	o.Arch, o.Firmware = "arm64", ""
	c = newDriver(t, o).Capabilities()
	if !slices.Equal(c.Ignition, []vmm.IgnitionTransport{vmm.IgnitionDisk}) || c.SMBIOSMaxBytes != 0 || c.Firmware {
		t.Errorf("arm64: %+v", c)
	}
}

func soundConfig() vmm.Config {
	return vmm.Config{
		Ref:         vmm.Ref{MachineID: "6f7d0d0a-2d2c-4f55-9e0c-b8d4c1f9f001", RuntimeDir: "/run/x", StateDir: "/var/x"},
		CPUs:        2,
		MemoryBytes: 1 << 30,
		Boot:        vmm.Boot{Kernel: "/k", Initramfs: "/i", CommandLine: "console=ttyS0"},
		Disks:       []vmm.Disk{{ID: "disk-a", Path: "/a", Serial: "a"}},
		NICs:        []vmm.NIC{{ID: "nic-a", MAC: "02:00:00:00:00:01", Kind: vmm.NICTap, Tap: "tap0"}},
	}
}

func TestWhatCannotRunIsRefusedBeforehand(t *testing.T) {
	payload := func(transport vmm.IgnitionTransport, size int) *vmm.Ignition {
		return &vmm.Ignition{Transport: transport, Data: make([]byte, size)}
	}
	tests := map[string]struct {
		change func(*vmm.Config)
		want   machine.Kind // Unknown if it is fine
	}{
		"nothing changed":         {func(*vmm.Config) {}, machine.Unknown},
		"firmware":                {func(c *vmm.Config) { c.Boot = vmm.Boot{} }, machine.Unknown},
		"firmware without a disk": {func(c *vmm.Config) { c.Boot, c.Disks = vmm.Boot{}, nil }, machine.Invalid},
		"initramfs alone":         {func(c *vmm.Config) { c.Boot.Kernel = "" }, machine.Invalid},
		"relative kernel":         {func(c *vmm.Config) { c.Boot.Kernel = "k" }, machine.Invalid},
		"no UUID":                 {func(c *vmm.Config) { c.MachineID = "m" }, machine.Invalid},
		"UUID in capitals":        {func(c *vmm.Config) { c.MachineID = strings.ToUpper(c.MachineID) }, machine.Invalid},
		"no CPU":                  {func(c *vmm.Config) { c.CPUs = 0 }, machine.Invalid},
		"negative memory":         {func(c *vmm.Config) { c.MemoryBytes = -1 }, machine.Invalid},
		"relative disk":           {func(c *vmm.Config) { c.Disks[0].Path = "a" }, machine.Invalid},
		"disk without id":         {func(c *vmm.Config) { c.Disks[0].ID = "" }, machine.Invalid},
		"reserved id":             {func(c *vmm.Config) { c.Disks[0].ID = "__a" }, machine.Invalid},
		"the config disk's id":    {func(c *vmm.Config) { c.Disks[0].ID = "ignition-config" }, machine.Invalid},
		"one id twice":            {func(c *vmm.Config) { c.NICs[0].ID = "disk-a" }, machine.Invalid},
		"no tap":                  {func(c *vmm.Config) { c.NICs[0].Tap = "" }, machine.Invalid},
		"no MAC":                  {func(c *vmm.Config) { c.NICs[0].MAC = "" }, machine.Invalid},
		"unknown kind":            {func(c *vmm.Config) { c.NICs[0].Kind = "x" }, machine.Invalid},
		"user network":            {func(c *vmm.Config) { c.NICs[0].Kind = vmm.NICUser }, machine.Unimplemented},
		"many disks":              {func(c *vmm.Config) { c.Disks = make([]vmm.Disk, 32) }, machine.Invalid},
		"many NICs":               {func(c *vmm.Config) { c.NICs = make([]vmm.NIC, 32) }, machine.Invalid},
		"greatest SMBIOS payload": {func(c *vmm.Config) { c.Ignition = payload(vmm.IgnitionSMBIOS, 30<<10) }, machine.Unknown},
		"greater SMBIOS payload":  {func(c *vmm.Config) { c.Ignition = payload(vmm.IgnitionSMBIOS, 30<<10+1) }, machine.Invalid},
		"greatest disk payload":   {func(c *vmm.Config) { c.Ignition = payload(vmm.IgnitionDisk, configdisk.MaxPayload) }, machine.Unknown},
		"greater disk payload":    {func(c *vmm.Config) { c.Ignition = payload(vmm.IgnitionDisk, configdisk.MaxPayload+1) }, machine.Invalid},
		"fw_cfg":                  {func(c *vmm.Config) { c.Ignition = payload(vmm.IgnitionFWCfg, 1) }, machine.Unimplemented},
		"long command line":       {func(c *vmm.Config) { c.Boot.CommandLine = strings.Repeat("x", 50_000) }, machine.Invalid},
	}
	d := newDriver(t, options())
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := soundConfig()
			tc.change(&cfg)
			err := d.Validate(cfg)
			if (err != nil) != (tc.want != machine.Unknown) || machine.KindOf(err) != tc.want {
				t.Errorf("error %v, want kind %v", err, tc.want)
			}
		})
	}
}

func TestArmAndAHostWithoutFirmwareAreToldWhatIsMissing(t *testing.T) {
	o := options()
	o.Arch, o.Firmware = "arm64", ""
	d := newDriver(t, o)
	cfg := soundConfig()
	cfg.Ignition = &vmm.Ignition{Transport: vmm.IgnitionSMBIOS, Data: []byte("{}")}
	if err := d.Validate(cfg); !machine.IsKind(err, machine.Unimplemented) || !strings.Contains(err.Error(), "config disk") {
		t.Errorf("error is %v", err)
	}
	cfg = soundConfig()
	cfg.Boot = vmm.Boot{}
	if err := d.Validate(cfg); !machine.IsKind(err, machine.Unimplemented) || !strings.Contains(err.Error(), "firmware") {
		t.Errorf("error is %v", err)
	}
}

func TestTheCommandIsAsTheVMMWantsIt(t *testing.T) {
	cfg := soundConfig()
	cfg.Ref = newRef(t)
	spec, err := newDriver(t, options()).Prepare(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/usr/bin/cloud-hypervisor",
		"--api-socket", "path=" + cfg.RuntimeDir + "/api.sock",
		"--event-monitor", "path=" + cfg.RuntimeDir + "/events",
		"--no-shutdown",
		"--log-file", cfg.StateDir + "/cloud-hypervisor.log",
		"--seccomp", "true",
	}
	if !slices.Equal(spec.Argv, want) {
		t.Errorf("command %q, want %q", spec.Argv, want)
	}
	if spec.Name != "chp-vmm-"+cfg.MachineID || len(spec.Env) != 0 {
		t.Errorf("name %q, environment %q", spec.Name, spec.Env)
	}
}

func TestPreparingKeepsTheLogOfTheRunBefore(t *testing.T) {
	cfg := soundConfig()
	cfg.Ref = newRef(t)
	log := filepath.Join(cfg.StateDir, "cloud-hypervisor.log")
	d := newDriver(t, options())
	for _, text := range []string{"first", "second"} {
		if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Prepare(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(log + ".1"); err != nil || string(got) != text {
			t.Errorf("the old log is %q, error %v, want %q", got, err, text)
		}
	}
}

func TestPreparingRemovesOnlyWhatNobodyUses(t *testing.T) {
	for _, name := range []string{"api.sock", "serial.sock"} {
		t.Run(name, func(t *testing.T) {
			cfg := soundConfig()
			cfg.Ref = newRef(t)
			if err := os.Mkdir(cfg.RuntimeDir, 0o750); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(cfg.RuntimeDir, name)
			d := newDriver(t, options())
			refused := func(what string) {
				t.Helper()
				if _, err := d.Prepare(t.Context(), cfg); !machine.IsKind(err, machine.FailedPrecondition) {
					t.Errorf("%s: error is %v, want failed precondition", what, err)
				}
				if _, err := os.Lstat(path); err != nil {
					t.Errorf("%s: it is gone", what)
				}
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			refused("a file")
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			l := listen(t, path)
			l.SetUnlinkOnClose(false)
			refused("a socket that is listened on")
			if name == "api.sock" {
				if err := d.Cleanup(t.Context(), cfg.Ref); !machine.IsKind(err, machine.FailedPrecondition) {
					t.Errorf("cleaning up under a living VMM: error is %v", err)
				}
			}
			l.Close()
			if _, err := d.Prepare(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(path); !os.IsNotExist(err) {
				t.Errorf("the stale socket stays, error %v", err)
			}
		})
	}
}

func TestDirectoriesThatTheVMMCannotTakeAreRefused(t *testing.T) {
	d := newDriver(t, options())
	for name, change := range map[string]func(*vmm.Ref){
		"relative":       func(r *vmm.Ref) { r.RuntimeDir = "run" },
		"none":           func(r *vmm.Ref) { r.StateDir = "" },
		"with a comma":   func(r *vmm.Ref) { r.RuntimeDir += ",fd=3" },
		"with a bracket": func(r *vmm.Ref) { r.StateDir += "[" },
		"too long":       func(r *vmm.Ref) { r.RuntimeDir += "/" + strings.Repeat("x", 100) },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := soundConfig()
			cfg.Ref = newRef(t)
			change(&cfg.Ref)
			if _, err := d.Prepare(t.Context(), cfg); !machine.IsKind(err, machine.Invalid) {
				t.Errorf("prepare: error is %v, want invalid", err)
			}
			if err := d.Cleanup(t.Context(), cfg.Ref); !machine.IsKind(err, machine.Invalid) {
				t.Errorf("clean up: error is %v, want invalid", err)
			}
		})
	}
}

func TestFilesAreForTheOwnerAlone(t *testing.T) {
	cfg := soundConfig()
	cfg.Ref = newRef(t)
	cfg.Ignition = &vmm.Ignition{Transport: vmm.IgnitionDisk, Data: []byte("{}")}
	if _, err := newDriver(t, options()).Prepare(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"": 0o750, "events": 0o600, "ignition.img": 0o600} {
		info, err := os.Stat(filepath.Join(cfg.RuntimeDir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: mode %v, error %v, want %v", name, info.Mode(), err, want)
		}
	}
	// The next life goes another way, and the payload with it.
	cfg.Ignition = nil
	if _, err := newDriver(t, options()).Prepare(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(cfg.RuntimeDir, "ignition.img")); !os.IsNotExist(err) {
		t.Errorf("the old config disk stays, error %v", err)
	}
}
