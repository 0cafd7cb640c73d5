// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package check tells whether a server is fit to run machines, item by item, each with what was found, why it
// matters and how to fix it.
//
// It exists so that an operator learns before the first machine what will not work, instead of from its failure. It
// judges; what is true is found out by package host. It must never change the server, need the daemon, or call
// something fine that was not looked at. Whether the configuration is valid is judged elsewhere, before this.
package check

import (
	"context"
	"os"
	"runtime"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
)

// Status is the verdict on one item.
type Status string

// The verdicts.
const (
	OK   Status = "ok"
	Warn Status = "warn" // works, but worse than it could, or something optional will not
	Fail Status = "fail" // the daemon does not start or cannot run machines as configured
)

// Item is one thing looked at.
type Item struct {
	Name   string `json:"name"` // stable, for scripts
	Status Status `json:"status"`
	Detail string `json:"detail"`         // what was found
	Hint   string `json:"hint,omitempty"` // what to do; only with Warn and Fail
}

// Options says what the configuration wants of the server.
type Options struct {
	StateDir   string     // where state and disks are kept; required
	RuntimeDir string     // where sockets are made; required
	SocketPath string     // the IRI socket; required
	Hypervisor host.Wants // hypervisor, accelerator, binaries, firmware
	HugePages  uint64     // size in bytes of the pages guests are put in; 0: guests use ordinary memory
	Volumes    Volumes
	Network    Network
	Probes     Probes // for tests
}

// Probes are the ways to look at the server. The zero value looks at this one.
type Probes struct {
	Facts   func() (host.Facts, error)
	Finder  host.Finder
	Storage func(ctx context.Context, dir string) (host.Storage, error)
	Dir     func(path string) (Dir, error)
	UID     func() int // effective user
}

func (p Probes) withDefaults() Probes {
	if p.Facts == nil {
		p.Facts = func() (host.Facts, error) { return host.ReadFacts(host.Source{}) }
	}
	if p.Storage == nil {
		p.Storage = host.ProbeStorage
	}
	if p.Dir == nil {
		p.Dir = lookAtDir
	}
	if p.UID == nil {
		p.UID = os.Geteuid
	}
	if p.Finder.OS == "" {
		p.Finder.OS = runtime.GOOS
	}
	if p.Finder.KVM == nil {
		p.Finder.KVM = host.ProbeKVM
	}
	return p
}

// storageLimit is far above what a healthy disk takes for three small writes, and below what a person waits.
const storageLimit = 15 * time.Second

// found is all that was found out; the judges only read it.
type found struct {
	Options

	facts    host.Facts
	factsErr error
	kvm      host.KVM

	cloudHypervisor, qemu       host.Binary
	cloudHypervisorErr, qemuErr error
	cloudHypervisorFW, qemuFW   host.FirmwareFiles
	cloudHypervisorFWErr        error
	qemuFWErr                   error

	decision    host.Decision
	decisionErr error

	storage    host.Storage
	storageErr error
}

// Run looks at everything and returns the report. It takes a second or less on a healthy server and at most about a
// minute on a sick one.
func Run(ctx context.Context, o Options) Report {
	o.Probes = o.Probes.withDefaults()
	f := lookAtAll(ctx, o)
	var r Report
	for _, judge := range judges {
		r.Items = append(r.Items, judge(f)...)
	}
	r.Facts = f.facts
	if f.decisionErr == nil {
		r.Decision = &f.decision
	}
	return r
}

// judges is the order of the report: the server, what runs machines, where their data goes.
var judges = []func(*found) []Item{
	(*found).server, (*found).memory, (*found).hugePages, (*found).cgroups, (*found).supervisor,
	(*found).kvmDevice, (*found).cloudHypervisorItems, (*found).qemuItems, (*found).choice,
	(*found).stateDir, (*found).disk, (*found).volumeTools, (*found).networks, (*found).runtimeDir, (*found).sockets,
}

func lookAtAll(ctx context.Context, o Options) *found {
	f := &found{Options: o}
	f.facts, f.factsErr = o.Probes.Facts()

	finder := o.Probes.Finder
	f.kvm = finder.KVM(ctx)
	finder.KVM = func(context.Context) host.KVM { return f.kvm } // tried once, used by all
	want := o.Hypervisor
	f.cloudHypervisor, f.cloudHypervisorErr = finder.CloudHypervisor(ctx, want.CloudHypervisorBinary)
	f.cloudHypervisorFW, f.cloudHypervisorFWErr = finder.Firmware(host.CloudHypervisor, want.Arch,
		want.CloudHypervisorFirmware)
	f.qemu, f.qemuErr = finder.QEMU(ctx, want.Arch, want.QEMUBinary)
	f.qemuFW, f.qemuFWErr = finder.Firmware(host.QEMU, want.Arch, want.QEMUFirmware)
	f.decision, f.decisionErr = finder.Choose(ctx, want)

	storageCtx, cancel := context.WithTimeout(ctx, storageLimit)
	defer cancel()
	f.storage, f.storageErr = o.Probes.Storage(storageCtx, o.StateDir)
	return f
}

func (f *found) onLinux() bool { return f.Probes.Finder.OS == "linux" }

func one(name string, s Status, detail, hint string) []Item {
	if s == OK {
		hint = ""
	}
	return []Item{{Name: name, Status: s, Detail: detail, Hint: hint}}
}
