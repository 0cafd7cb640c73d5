// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package localdisk

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func TestADiskThatIsPutAwayIsWholeUnderItsOtherName(t *testing.T) {
	p, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	image := noise(1, 1<<20)
	req := request(t, 0, image)
	if _, err := p.Prepare(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	as := req
	as.Volume = machine.Volume{Name: req.Volume.Name + ".retired-1"}
	as.Dir = filepath.Join(filepath.Dir(req.Dir), as.Volume.Name)
	for range 2 { // the second time it is away already
		if err := p.Retire(t.Context(), req, as); err != nil {
			t.Fatal(err)
		}
		if !begins(t, filepath.Join(as.Dir, diskName), image) {
			t.Error("the disk is not what it was")
		}
	}
	if _, err := p.Prepare(t.Context(), req); err != nil { // its name is free
		t.Fatal(err)
	}
	if err := p.Retire(t.Context(), req, as); !machine.IsKind(err, machine.FailedPrecondition) {
		t.Errorf("over another one: %v", err)
	}
	foreign := as
	foreign.Dir = t.TempDir()
	if err := p.Retire(t.Context(), req, foreign); !machine.IsKind(err, machine.Invalid) {
		t.Errorf("elsewhere: %v", err)
	}
	if err := p.Delete(t.Context(), as); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(as.Dir); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
	if !begins(t, filepath.Join(req.Dir, diskName), image) {
		t.Error("the other disk is gone")
	}
}
