// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// rule says what the files of some rooms must not import. Rooms are directories from the root; "x/..." includes all
// below x. Imports of this module are written the same way, others in full.
type rule struct {
	rooms  []string
	except []string // rooms or files the rule does not hold for
	tests  bool     // the rule holds for tests, too

	never []string // must not be imported
	only  []string // if set: the only rooms of this module that may be imported, besides those below itself

	why, instead string
}

// drivers are the rooms behind a seam.
var drivers = []string{"internal/vmm/...", "internal/volume/...", "network/...", "internal/image/...", "internal/device/..."}

// rules is the picture of ARCHITECTURE.md as a table: arrows point inward only.
var rules = []rule{
	{
		rooms: []string{"..."}, tests: true, never: []string{"cmd/..."},
		why: "cmd is wiring and nothing else", instead: "move what you need into a room of internal",
	},
	{
		rooms: []string{"internal/machine"}, only: []string{"nothing"},
		why: "machine is the word everybody speaks", instead: "let the other room import machine",
	},
	{
		rooms: []string{"internal/store/..."}, only: []string{"internal/machine"},
		why: "the store keeps machines and knows nobody who uses it", instead: "pass a value or a function in the options",
	},
	{
		rooms: []string{"internal/host/..."}, only: []string{"internal/host", "internal/machine"},
		why: "what a server is does not depend on what runs on it", instead: "pass values in the options",
	},
	{
		rooms:   drivers,
		never:   []string{"internal/store/...", "internal/reconcile/...", "internal/iriserver/...", "internal/config/..."},
		why:     "a driver or plugin does what it is told about a machine; it neither decides, stores nor configures",
		instead: "take the value in the options of the constructor, or return what should be stored",
	},
	{
		rooms: []string{"network/..."}, tests: true, only: []string{"network/..."},
		why: "another provider takes the network plugins as they are", instead: "take a value or a function in the options",
	},
	{
		rooms: []string{"internal/reconcile/..."}, never: []string{"internal/iriserver/...", "internal/config/..."},
		why: "the reconciler works from the store whoever fills it", instead: "take a value in the options",
	},
	{
		rooms: []string{"internal/reconcile/...", "internal/iriserver/..."},
		never: []string{
			"internal/vmm/cloudhypervisor/...", "internal/vmm/qemu/...", "internal/volume/localdisk/...",
			"internal/volume/ceph/...", "network/isolated/...", "network/user/...",
			"network/providernet/...", "network/apinet/...",
		},
		why: "they work with every driver and plugin", instead: "use the seam; cmd passes the driver in",
	},
	{
		rooms: []string{"internal/config/..."},
		never: []string{
			"internal/store/...", "internal/reconcile/...", "internal/iriserver/...", "internal/vmm/...",
			"internal/volume/...", "network/...", "internal/image/...", "internal/host/...",
		},
		why: "a configuration is judged without a server", instead: "check against the server in internal/host/check",
	},
	{
		rooms: []string{"internal/iriserver/..."}, except: []string{"internal/iriserver/serve.go"},
		never:   []string{"os", "os/exec", "io/ioutil", "syscall", "golang.org/x/sys/unix"},
		why:     "RPC handlers do no I/O but to store and claims; only serve.go, which makes the socket, may",
		instead: "store what was asked and let the reconciler do it",
	},
	{
		rooms: []string{"..."}, except: []string{"test/..."}, never: []string{"test/..."},
		why: "what is for tests stays out of the daemon", instead: "move it to internal if the daemon needs it",
	},
	{
		rooms: []string{"..."}, except: []string{"test/...", "internal/vmm/vmmtest/...", "network/networktest/..."},
		never: []string{"internal/vmm/vmmtest/...", "internal/vmm/process/processtest/...", "network/networktest/..."},
		why:   "conformance suites and fakes are for tests", instead: "import it from a _test.go file",
	},
	{
		rooms: []string{"..."}, except: []string{"cmd/...", "internal/config/...", "test/..."},
		never: []string{"github.com/spf13/cobra", "github.com/spf13/pflag"},
		why:   "flags are read in one place", instead: "take the value in the options of the constructor",
	},
	{
		rooms: []string{"internal/...", "cmd/..."}, never: []string{"log", "io/ioutil", "plugin"},
		why: "there is one way of logging, and no code is loaded at run time", instead: "use log/slog, os, io",
	},
	{
		rooms: []string{"..."}, tests: true,
		never: []string{"github.com/stretchr/testify/...", "github.com/onsi/ginkgo/...", "github.com/onsi/gomega/..."},
		why:   "there is one language for tests", instead: "use the standard library and go-cmp",
	},
}

func TestRoomsKeepTheirDistance(t *testing.T) {
	_, all := tree(t)
	for _, s := range all {
		for _, r := range rules {
			if !r.appliesTo(s) {
				continue
			}
			for _, i := range s.imports {
				if r.forbids(s, i.path) {
					t.Errorf("%s:%d: must not import %s: %s. Instead: %s.", s.path, i.line, shown(i.path), r.why, r.instead)
				}
			}
		}
	}
}

func (r rule) appliesTo(s source) bool {
	if s.test && !r.tests {
		return false
	}
	holds := func(room string) bool { return within(s.dir, room) || s.path == room }
	return slices.ContainsFunc(r.rooms, holds) && !slices.ContainsFunc(r.except, holds)
}

func (r rule) forbids(s source, path string) bool {
	target, own := strings.CutPrefix(path, module+"/")
	if slices.ContainsFunc(r.never, func(n string) bool { return within(target, n) }) {
		// A command may have packages below itself.
		return !within(target, s.dir+"/...")
	}
	if len(r.only) == 0 || !own || within(target, s.dir+"/...") {
		return false
	}
	return !slices.ContainsFunc(r.only, func(o string) bool { return within(target, o) })
}

// within reports whether a path is the room, or below it if the room ends in "/...".
func within(path, room string) bool {
	if room == "..." {
		return true
	}
	base, below := strings.CutSuffix(room, "/...")
	return path == base || below && strings.HasPrefix(path, base+"/")
}

func shown(path string) string { return strings.TrimPrefix(path, module+"/") }

// A rule nobody could break proves nothing, so the checker is tried on made-up files.
func TestTheRulesCatchViolations(t *testing.T) {
	for name, tc := range map[string]struct {
		path, imports string
		broken        bool
	}{
		"a driver imports the store":                 {"internal/vmm/qemu/a.go", module + "/internal/store", true},
		"a driver imports its seam":                  {"internal/vmm/qemu/a.go", module + "/internal/vmm", false},
		"a plugin imports the configuration":         {"internal/volume/ceph/a.go", module + "/internal/config", true},
		"a network plugin imports the daemon":        {"network/apinet/a.go", module + "/internal/machine", true},
		"a network plugin imports the seam":          {"network/apinet/a.go", module + "/network", false},
		"machine imports anything":                   {"internal/machine/a.go", module + "/internal/vmm", true},
		"machine imports the standard library":       {"internal/machine/a.go", "fmt", false},
		"the store imports machine":                  {"internal/store/a.go", module + "/internal/machine", false},
		"the store imports the reconciler":           {"internal/store/a.go", module + "/internal/reconcile", true},
		"the reconciler imports a driver":            {"internal/reconcile/a.go", module + "/internal/vmm/qemu", true},
		"a handler opens files":                      {"internal/iriserver/create.go", "os", true},
		"the server makes its socket":                {"internal/iriserver/serve.go", "os", false},
		"somebody imports cmd":                       {"internal/host/a.go", module + "/cmd/cloud-hypervisor-provider", true},
		"a test imports cmd":                         {"internal/host/a_test.go", module + "/cmd/cloud-hypervisor-provider", true},
		"the daemon imports a test room":             {"cmd/cloud-hypervisor-provider/a.go", module + "/test/guest", true},
		"a test imports a test room":                 {"internal/vmm/qemu/a_test.go", module + "/test/guest", false},
		"a driver imports the fake":                  {"internal/vmm/cloudhypervisor/a.go", module + "/internal/vmm/vmmtest/fakech", true},
		"a room with a similar name is not mistaken": {"internal/vmmx/a.go", module + "/internal/store", false},
		"a room reads flags":                         {"internal/store/a.go", "github.com/spf13/pflag", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := source{path: tc.path, dir: tc.path[:strings.LastIndex(tc.path, "/")], test: strings.HasSuffix(tc.path, "_test.go")}
			var broken []string
			for i, r := range rules {
				if r.appliesTo(s) && r.forbids(s, tc.imports) {
					broken = append(broken, fmt.Sprintf("rule %d (%s)", i, r.why))
				}
			}
			if (len(broken) > 0) != tc.broken {
				t.Errorf("%s importing %s breaks %v, want broken: %v", tc.path, tc.imports, broken, tc.broken)
			}
		})
	}
}
