// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// unitFile is the unit that is shipped.
const unitFile = "../../deploy/systemd/cloud-hypervisor-provider.service"

// mostExposure is what "systemd-analyze security" may say at most, from 0 (closed) to 10. What is left open is said, with
// the reason, in the unit.
const mostExposure = 4.0

// settings reads the unit: section.key -> values, in order.
func settings(t *testing.T) map[string][]string {
	t.Helper()
	raw, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	all, section := map[string][]string{}, ""
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		switch key, value, ok := strings.Cut(line, "="); {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
		case !ok || strings.HasSuffix(line, `\`):
			t.Fatalf("the unit has the line %q", line)
		default:
			all[section+"."+key] = append(all[section+"."+key], value)
		}
	}
	return all
}

func TestTheUnitKeepsGuestsApartFromTheDaemon(t *testing.T) {
	unit := settings(t)
	for _, want := range []struct{ key, value, because string }{
		{"Service.Type", "notify", "started has to mean that the IRI socket is open"},
		{"Service.NotifyAccess", "main", "nobody else may say so"},
		{"Service.KillMode", "process", "a VMM that is a child must live through a stop"},
		{"Service.Restart", "always", "a node that lost its daemon is lost"},
		{"Unit.StartLimitIntervalSec", "0", "and must not be given up"},
		{"Service.RuntimeDirectory", "cloud-hypervisor-provider", "the daemon's runtimeDir"},
		{"Service.RuntimeDirectoryPreserve", "yes", "the sockets of running VMMs are in there"},
		{"Service.StateDirectory", "cloud-hypervisor-provider", "the daemon's stateDir"},
		{"Service.WatchdogSec", "2min", "a daemon that hangs has to be ended"},
		{"Install.WantedBy", "multi-user.target", "it has to be there after a reboot"},
	} {
		if got := unit[want.key]; !slices.Equal(got, []string{want.value}) {
			t.Errorf("%s is %q, want %q: %s", want.key, got, want.value, want.because)
		}
	}
	for key := range unit {
		for _, bound := range []string{"PartOf", "BindsTo", "Delegate", "DynamicUser", "Slice"} {
			if strings.HasSuffix(key, "."+bound) {
				t.Errorf("%s is set", key)
			}
		}
	}
}

// What the kernel takes away here, the daemon was seen to need.
func TestTheUnitLeavesTheDaemonWhatItNeeds(t *testing.T) {
	unit := settings(t)
	for key, words := range map[string][]string{
		"Service.CapabilityBoundingSet":   {"CAP_CHOWN", "CAP_NET_ADMIN", "CAP_SYS_PTRACE"},
		"Service.DeviceAllow":             {"/dev/kvm", "/dev/net/tun"},
		"Service.ReadWritePaths":          {"/run"},
		"Service.RestrictAddressFamilies": {"AF_UNIX", "AF_INET", "AF_INET6"},
		"Service.ExecStart":               {"serve", "--config", "--hypervisor-supervisor", "systemd"},
	} {
		have := strings.Fields(strings.Join(unit[key], " "))
		for _, w := range words {
			if !slices.Contains(have, w) {
				t.Errorf("%s lacks %s", key, w)
			}
		}
	}
	if got := unit["Service.ProtectKernelTunables"]; !slices.Equal(got, []string{"no"}) {
		t.Errorf("ProtectKernelTunables is %q: tap devices could not be configured", got)
	}
}

// analyze runs systemd-analyze, which only reads files for what is asked of it here. The program of the unit is replaced
// by one that exists on this host.
func analyze(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("SKIPPED: systemd-analyze is not on this host (Debian package systemd); the unit was NOT verified")
	}
	raw, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := strings.Fields(settings(t)["Service.ExecStart"][0])[0]
	copied := filepath.Join(t.TempDir(), filepath.Base(unitFile))
	if err := os.WriteFile(copied, []byte(strings.Replace(string(raw), program, self, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), tool, append(args, copied)...)
	cmd.Env = append(os.Environ(), "SYSTEMD_COLORS=0", "LC_ALL=C")
	raw, err = cmd.CombinedOutput()
	return string(raw), err
}

// It exits with 0 for keys it does not know, too, so it must not say anything about the unit.
func TestSystemdFindsNoFaultWithTheUnit(t *testing.T) {
	out, err := analyze(t, "verify", "--man=no")
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, filepath.Base(unitFile)) {
			t.Error(strings.TrimSpace(line))
		}
	}
}

func TestTheUnitIsAsClosedAsItWas(t *testing.T) {
	out, err := analyze(t, "security", "--offline=true", "--no-pager")
	found := regexp.MustCompile(`Overall exposure level for .*: ([0-9.]+)`).FindStringSubmatch(out)
	if err != nil || found == nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if level, err := strconv.ParseFloat(found[1], 64); err != nil || level > mostExposure {
		t.Errorf("exposure level %s, want at most %v\n%s", found[1], mostExposure, out)
	}
}
