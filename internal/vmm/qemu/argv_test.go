// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

var update = flag.Bool("update", false, "write the golden files")

const machineID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"

func smallConfig() vmm.Config {
	return vmm.Config{
		Ref:  vmm.Ref{MachineID: machineID, RuntimeDir: "/run/chp/m", StateDir: "/var/lib/chp/m"},
		CPUs: 2, MemoryBytes: 512 << 20,
		Disks: []vmm.Disk{{ID: "disk-root", Path: "/var/lib/chp/m/root.raw", Serial: "vda-80"}},
	}
}

func fullConfig() vmm.Config {
	cfg := smallConfig()
	cfg.Boot = vmm.Boot{Kernel: "/img/vmlinuz", Initramfs: "/img/initrd", CommandLine: "console=ttyS0 a=b,c"}
	cfg.Disks = append(cfg.Disks, vmm.Disk{ID: "disk-lv", Path: "/dev/vg/lv", Serial: "vdb-81", ReadOnly: true})
	cfg.NICs = []vmm.NIC{
		{ID: "nic-a", MAC: "02:00:00:00:00:01", Kind: vmm.NICIsolated},
		{
			ID: "nic-b", MAC: "02:00:00:00:00:02", Kind: vmm.NICUser,
			Forwards: []vmm.PortForward{{HostAddress: "127.0.0.1", HostPort: 2222, GuestPort: 22}, {HostPort: 8080, GuestPort: 80}},
		},
	}
	cfg.Ignition = &vmm.Ignition{Transport: vmm.IgnitionFWCfg, Data: []byte("secret")}
	cfg.GuestAgent = true
	return cfg
}

func TestCommandLineIsAsWrittenDown(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: sandbox, memory backend and locking differ outside Linux")
	}
	bios := Firmware{}
	uefi := Firmware{Code: "/fw/CODE.fd", Vars: "/fw/VARS.fd"}
	for name, c := range map[string]struct {
		o   Options
		cfg vmm.Config
	}{
		"amd64-kvm-kernel": {Options{Binary: "qemu-system-x86_64", Architecture: "amd64", Accelerator: KVM}, fullConfig()},
		"amd64-tcg-bios":   {Options{Binary: "qemu-system-x86_64", Architecture: "amd64", Accelerator: TCG, Firmware: bios, HotplugPorts: 2}, smallConfig()},
		"amd64-tcg-uefi":   {Options{Binary: "qemu-system-x86_64", Architecture: "amd64", Accelerator: TCG, Firmware: uefi}, smallConfig()},
		"arm64-hvf-uefi":   {Options{Binary: "qemu-system-aarch64", Architecture: "arm64", Accelerator: HVF, Firmware: uefi}, smallConfig()},
		"arm64-tcg-kernel": {Options{Binary: "qemu-system-aarch64", Architecture: "arm64", Accelerator: TCG}, fullConfig()},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := New(c.o)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Validate(c.cfg); err != nil {
				t.Fatal(err)
			}
			args, err := d.commandLine(c.cfg, slots{}.arrange(c.cfg, 40).Ports, func(path string) bool { return strings.HasPrefix(path, "/dev/") })
			if err != nil {
				t.Fatal(err)
			}
			got := lines(args)
			file := filepath.Join("testdata", name+".argv")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("command line (-want +got; -update writes it):\n%s", diff)
			}
		})
	}
}

// lines puts each option with its value on a line of its own.
func lines(args []string) string {
	var b strings.Builder
	for i, a := range args {
		switch {
		case i == 0:
		case strings.HasPrefix(a, "-"):
			b.WriteString("\n")
		default:
			b.WriteString(" ")
		}
		b.WriteString(a)
	}
	return b.String() + "\n"
}

func TestSecretsStayOutOfTheCommandLine(t *testing.T) {
	d, err := New(Options{Binary: "qemu", Accelerator: TCG, Architecture: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	args, err := d.commandLine(fullConfig(), slots{}.arrange(fullConfig(), 40).Ports, func(string) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(strings.Join(args, " "), "secret") {
		t.Error("the Ignition payload is in the command line")
	}
}

func TestMachineHasRoomForItsDevicesAndSpareOnes(t *testing.T) {
	d, err := New(Options{Binary: "qemu", Accelerator: TCG, Architecture: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := smallConfig()
	for i := range MaxDisks - 1 {
		cfg.Disks = append(cfg.Disks, vmm.Disk{ID: "disk-" + portName(i), Path: "/x"})
	}
	args, err := d.commandLine(cfg, slots{}.arrange(cfg, 40).Ports, func(string) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(args, "\n")
	if got, want := strings.Count(all, "\npcie-root-port,"), MaxDisks+sparePorts; got != want {
		t.Errorf("%d root ports, want %d", got, want)
	}
	if highest := firstPortSlot + (MaxDisks+MaxNICs+sparePorts-1)/portsPerSlot; highest >= agentSlot {
		t.Errorf("root ports reach slot %#x, which is taken", highest)
	}
}

func TestWhatCannotRunIsRefused(t *testing.T) {
	d, err := New(Options{Binary: "qemu", Accelerator: TCG, Architecture: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	arm, err := New(Options{Binary: "qemu", Accelerator: TCG, Architecture: "arm64"})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Validate(fullConfig()); err != nil {
		t.Fatal(err)
	}
	if err := arm.Validate(smallConfig()); !machine.IsKind(err, machine.Unimplemented) {
		t.Errorf("arm64 without kernel and firmware: %v, want unimplemented", err)
	}
	for name, change := range map[string]func(*vmm.Config){
		"machine id that is no UUID":     func(c *vmm.Config) { c.MachineID = "vm-1" },
		"machine id in capitals":         func(c *vmm.Config) { c.MachineID = strings.ToUpper(machineID) },
		"relative runtime directory":     func(c *vmm.Config) { c.RuntimeDir = "run" },
		"runtime directory too long":     func(c *vmm.Config) { c.RuntimeDir = "/" + strings.Repeat("x", 100) },
		"too many CPUs":                  func(c *vmm.Config) { c.CPUs = 256 },
		"memory of odd size":             func(c *vmm.Config) { c.MemoryBytes = 1<<20 + 1 },
		"initramfs without kernel":       func(c *vmm.Config) { c.Boot.Kernel = "" },
		"nothing to boot from":           func(c *vmm.Config) { c.Boot = vmm.Boot{}; c.Disks = nil },
		"relative disk path":             func(c *vmm.Config) { c.Disks[0].Path = "disk" },
		"disk id that QEMU refuses":      func(c *vmm.Config) { c.Disks[0].ID = "9disk" },
		"disk id like a port":            func(c *vmm.Config) { c.Disks[0].ID = "rp1" },
		"disk id with a comma":           func(c *vmm.Config) { c.Disks[0].ID = "a,b" },
		"disk and NIC of one id":         func(c *vmm.Config) { c.NICs[0].ID = c.Disks[0].ID },
		"no MAC":                         func(c *vmm.Config) { c.NICs[0].MAC = "" },
		"MAC with an option":             func(c *vmm.Config) { c.NICs[0].MAC = "02:00:00:00:00,x=y" },
		"forward on an isolated NIC":     func(c *vmm.Config) { c.NICs[0].Forwards = []vmm.PortForward{{GuestPort: 1}} },
		"forward to no port":             func(c *vmm.Config) { c.NICs[1].Forwards[0].GuestPort = 0 },
		"forward from a name":            func(c *vmm.Config) { c.NICs[1].Forwards[0].HostAddress = "localhost" },
		"Ignition payload beyond fw_cfg": func(c *vmm.Config) { c.Ignition.Data = make([]byte, vmm.MaxIgnitionFWCfg+1) },
		"tap without a name":             func(c *vmm.Config) { c.NICs[0].Kind = vmm.NICTap },
	} {
		cfg := fullConfig()
		change(&cfg)
		if err := d.Validate(cfg); !machine.IsKind(err, machine.Invalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	for name, o := range map[string]Options{
		"no binary":            {Accelerator: TCG},
		"no accelerator":       {Binary: "q"},
		"unknown accelerator":  {Binary: "q", Accelerator: "xen"},
		"unknown architecture": {Binary: "q", Accelerator: TCG, Architecture: "s390x"},
		"negative ports":       {Binary: "q", Accelerator: TCG, HotplugPorts: -1},
		"too many ports":       {Binary: "q", Accelerator: TCG, HotplugPorts: 41},
		"code without vars":    {Binary: "q", Accelerator: TCG, Firmware: Firmware{Code: "c"}},
		"two firmwares":        {Binary: "q", Accelerator: TCG, Firmware: Firmware{Code: "c", Vars: "v", BIOS: "b"}},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
