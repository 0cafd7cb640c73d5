// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/controlplane"
)

// inDir lists processes that have a directory in their arguments.
func inDir(t *testing.T, dir string) []string {
	t.Helper()
	if dir == "" {
		t.Fatal("there was no control plane")
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Skip("/proc is absent here, so processes cannot be looked at")
	}
	var found []string
	for _, e := range entries {
		args, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if program, _, _ := strings.Cut(string(args), "\x00"); strings.Contains(string(args), dir+"/") {
			found = append(found, e.Name()+" "+program)
		}
	}
	return found
}

func TestNothingIsLeftWhenATestEnds(t *testing.T) {
	onRequest(t)
	var dir string
	t.Run("a control plane", func(t *testing.T) {
		dir = controlplane.Start(t, controlplane.Options{}).Dir()
		if len(inDir(t, dir)) < 2 {
			t.Error("its processes are not seen")
		}
	})
	if left := inDir(t, dir); len(left) > 0 {
		t.Errorf("processes %v", left)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory: %v", err)
	}
}

// hangVariable has a copy of this program run a control plane until it is killed, and tell where in a file.
const hangVariable = "CHP_CONTROLPLANE_HANG"

func TestNoProcessIsLeftWhenATestIsKilled(t *testing.T) {
	if file := os.Getenv(hangVariable); file != "" {
		cp := controlplane.Start(t, controlplane.Options{IronCore: true})
		if err := os.WriteFile(file+".new", []byte(cp.Dir()), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	onRequest(t)
	file := filepath.Join(t.TempDir(), "dir")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	victim := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$")
	victim.Env = append(os.Environ(), hangVariable+"="+file)
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	var dir string
	eventually(t, "the other test has a control plane", func() error {
		raw, err := os.ReadFile(file)
		dir = string(raw)
		return err
	})
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if len(inDir(t, dir)) < 4 {
		t.Errorf("its processes are not seen: %v", inDir(t, dir))
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait() // it was killed
	eventually(t, "its processes end", func() error {
		if left := inDir(t, dir); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}
