// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package networktest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/internal/rtnl"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network/tap"
)

// OccupyTap is a Setup.Occupy: a bridge of somebody else has the name of the interface's tap.
func OccupyTap(t *testing.T, ref network.Ref) (untouched func() error) {
	t.Helper()
	name, alias := tap.Name(ref.MachineID, ref.Name), "somebody else's"
	if err := rtnl.AddBridge(t.Context(), name, []byte{2, 0, 0, 0, 9, 9}); err != nil {
		t.Fatal(err)
	}
	link, err := rtnl.ByName(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rtnl.Delete(context.Background(), link.Index) })
	if err := rtnl.Set(t.Context(), link.Index, rtnl.Change{Alias: &alias}); err != nil {
		t.Fatal(err)
	}
	link.Alias = alias
	return func() error {
		now, err := rtnl.ByName(t.Context(), name)
		if diff := cmp.Diff(link, now); diff != "" {
			return errors.Join(err, fmt.Errorf("device changed: %s", diff))
		}
		return err
	}
}

// IP runs the ip command with the words of line and returns what it says.
func IP(t *testing.T, line string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(line)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", line, err, out)
	}
	return string(out)
}
