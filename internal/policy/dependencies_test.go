// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/dependencies.txt anew")

const (
	// maxPackages are non-standard ones in the daemon, its own included. A hundred are client-go's, for ironcore-net; a
	// typed client would be 250 more.
	maxPackages      = 360
	maxDirectModules = 28
	dependencyList   = "testdata/dependencies.txt"
)

// goTool runs the go command for the platform that is released, whatever this one is.
func goTool(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0", "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return out
}

// Every package the daemon takes in from elsewhere is listed in a file that is reviewed: a new import that pulls in
// two hundred packages is seen in the diff and not a year later.
func TestTheDaemonDependsOnWhatIsListed(t *testing.T) {
	tree(t) // lets the test cache notice changed sources, which the go command reads unseen
	packages := strings.Fields(string(goTool(t, "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}",
		"./cmd/cloud-hypervisor-provider")))
	if len(packages) > maxPackages {
		t.Errorf("the daemon consists of %d non-standard packages, the limit is %d; find the import that brings so many with "+
			"\"go mod why\" and do without it", len(packages), maxPackages)
	}
	foreign := slices.DeleteFunc(packages, func(p string) bool { return strings.HasPrefix(p, module) })
	slices.Sort(foreign)
	got := strings.Join(foreign, "\n") + "\n"
	if *update {
		if err := os.WriteFile(dependencyList, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(dependencyList)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the daemon's dependencies changed. If that is meant, run\n"+
			"  go test ./internal/policy -run Daemon -update\nand commit %s with the change (-listed +now):\n%s",
			"internal/policy/"+dependencyList, diff)
	}
}

func TestFewModulesAreRequiredDirectly(t *testing.T) {
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Replace []struct{ Old struct{ Path string } }
	}
	if err := json.Unmarshal(goTool(t, "mod", "edit", "-json"), &mod); err != nil {
		t.Fatal(err)
	}
	var direct []string
	for _, r := range mod.Require {
		if !r.Indirect {
			direct = append(direct, r.Path)
		}
	}
	if len(direct) > maxDirectModules {
		t.Errorf("go.mod requires %d modules directly, the limit is %d; write the few lines you need, or drop one of:\n  %s",
			len(direct), maxDirectModules, strings.Join(direct, "\n  "))
	}
	for _, r := range mod.Replace {
		t.Errorf("go.mod replaces %s; a replaced module cannot be installed with \"go install\": require a released version",
			r.Old.Path)
	}
}
