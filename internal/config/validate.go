// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config/document"
)

// relistInterval is how often the machine pool controller fetches events (its resync default).
const relistInterval = time.Minute

// validate applies the rules about several values at once. A rule is silent when one of its values
// was refused already.
func (r *loading) validate() {
	r.directories()
	r.driver()
	r.accelerator()
	r.ignition()
	r.userNetwork()
	r.providerNetworks()
	r.apinet()
	r.volumes()
	r.events()
	r.servers()
	r.streaming()
	if r.sound("machineClasses.file", "machineClasses.inline") &&
		r.cfg.MachineClasses.File != "" && len(r.cfg.MachineClasses.Inline) > 0 {
		r.fail("machineClasses.inline", "keep one of the two", "contradicts machineClasses.file: classes come from one place")
	}
}

func (r *loading) sound(paths ...string) bool {
	for _, p := range paths {
		if r.bad[p] {
			return false
		}
	}
	return true
}

func (r *loading) fail(path, suggestion, format string, args ...any) {
	r.report.Add(Problem{
		Severity: document.Error, Position: r.sources[path], Path: path,
		Message: fmt.Sprintf(format, args...), Suggestion: suggestion,
	})
}

func (r *loading) warn(path, suggestion, format string, args ...any) {
	r.report.Add(Problem{
		Severity: document.Warning, Position: r.sources[path], Path: path,
		Message: fmt.Sprintf(format, args...), Suggestion: suggestion,
	})
}

func (r *loading) directories() {
	state, run, socket := r.cfg.StateDir, r.cfg.RuntimeDir, r.cfg.IRI.Address
	if r.sound("stateDir") {
		if state == "/" {
			r.fail("stateDir", "", "the root directory cannot be the state directory")
		}
		for _, volatile := range []string{"/run", "/var/run", "/dev/shm"} {
			if inside(state, volatile) {
				r.warn("stateDir", "use a directory on disk", "%s is emptied at reboot, and the machines with it", volatile)
			}
		}
	}
	if r.sound("runtimeDir") && run == "/" {
		r.fail("runtimeDir", "", "the root directory cannot be the runtime directory")
	} else if r.sound("stateDir", "runtimeDir") && inside(state, run) {
		r.fail("runtimeDir", "", "contains stateDir, which must survive when the runtime directory is emptied")
	}
	if r.sound("iri.address", "stateDir", "runtimeDir") && (socket == state || socket == run) {
		r.fail("iri.address", "", "is a directory of this configuration, want a socket's path")
	}
}

// inside is true for the directory itself too.
func inside(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

func (r *loading) driver() {
	if !r.sound("hypervisor.driver", "hypervisor.supervisor") {
		return
	}
	if goos := r.loader.goos(); goos != "linux" {
		if r.cfg.Hypervisor.Driver == DriverCloudHypervisor {
			r.fail("hypervisor.driver", "use qemu", "Cloud Hypervisor needs Linux, this is %s", goos)
		}
		if r.cfg.Hypervisor.Supervisor == SupervisorSystemd {
			r.fail("hypervisor.supervisor", "use child", "systemd needs Linux, this is %s", goos)
		}
	}
}

func (r *loading) accelerator() {
	if !r.sound("hypervisor.qemu.accelerator") {
		return
	}
	switch goos, a := r.loader.goos(), r.cfg.Hypervisor.QEMU.Accelerator; {
	case a == AcceleratorHVF && goos != "darwin":
		r.fail("hypervisor.qemu.accelerator", "use auto", "hvf needs macOS, this is %s", goos)
	case a == AcceleratorKVM && goos != "linux":
		r.fail("hypervisor.qemu.accelerator", "use auto", "kvm needs Linux, this is %s", goos)
	}
}

func (r *loading) ignition() {
	if !r.sound("hypervisor.ignition", "hypervisor.driver") {
		return
	}
	const path = "hypervisor.ignition"
	driver := r.cfg.Hypervisor.Driver
	switch r.cfg.Hypervisor.Ignition {
	case IgnitionFWCfg:
		switch driver {
		case DriverCloudHypervisor:
			r.fail(path, "use auto, disk or smbios", "fw_cfg needs hypervisor.driver qemu")
		case Auto:
			r.warn(path, "set hypervisor.driver to qemu", "fw_cfg works only if qemu is chosen at start")
		}
	case IgnitionSMBIOS:
		if arch := r.loader.goarch(); arch != "amd64" {
			r.fail(path, "use auto or disk", "smbios needs amd64, this is %s", arch)
		} else if driver == DriverQEMU {
			r.fail(path, "use auto, fw_cfg or disk", "smbios needs hypervisor.driver cloud-hypervisor")
		} else if driver == Auto {
			r.warn(path, "set hypervisor.driver to cloud-hypervisor", "smbios works only if cloud-hypervisor is chosen at start")
		}
	}
}

func (r *loading) userNetwork() {
	if !r.sound("network.plugin", "network.user.forwards", "hypervisor.driver") {
		return
	}
	n := r.cfg.Network
	if n.Plugin != NetworkUser {
		if len(n.User.Forwards) > 0 {
			r.fail("network.user.forwards", "set network.plugin to user", "contradicts network.plugin %s, which forwards no port", n.Plugin)
		}
		return
	}
	switch r.cfg.Hypervisor.Driver {
	case DriverCloudHypervisor:
		r.fail("network.plugin", "use isolated", "the user network needs hypervisor.driver qemu")
	case Auto:
		r.warn("network.plugin", "set hypervisor.driver to qemu", "the user network works only if qemu is chosen at start")
	}
	first := map[string]bool{}
	for _, f := range n.User.Forwards {
		key := fmt.Sprintf("%s:%d", f.HostAddress, f.HostPort)
		if first[key] {
			r.fail("network.user.forwards", "", "%s is forwarded twice", key)
		}
		first[key] = true
	}
}

func (r *loading) events() {
	if !r.sound("events.ttl", "events.sweepInterval") {
		return
	}
	e := r.cfg.Events
	if e.TTL <= relistInterval {
		r.fail("events.ttl", "use 2m or more", "%s is too short: the machine pool controller fetches events once a minute, and some would be gone by then", formatDuration(e.TTL))
	} else if e.SweepInterval > e.TTL {
		r.warn("events.sweepInterval", "use at most events.ttl", "%s is longer than events.ttl, so events are kept for up to twice their time", formatDuration(e.SweepInterval))
	}
}

func (r *loading) servers() {
	s := r.cfg.Servers
	if r.sound("servers.healthAddress", "servers.metricsAddress") && s.HealthAddress != "" && s.HealthAddress == s.MetricsAddress {
		r.fail("servers.metricsAddress", "use another port", "is servers.healthAddress too: health is for everybody to ask, metrics and status are not")
	}
}

func (r *loading) streaming() {
	const cert, key = "streaming.tlsCertFile", "streaming.tlsKeyFile"
	if s := r.cfg.Streaming; r.sound(cert, key) && (s.TLSCertFile == "") != (s.TLSKeyFile == "") {
		path, missing := cert, key
		if s.TLSCertFile == "" {
			path, missing = key, cert
		}
		r.fail(path, "", "needs %s: certificate and key belong together", missing)
	}
}
