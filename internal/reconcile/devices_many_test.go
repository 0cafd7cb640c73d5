// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// TestManyVolumesComeAndGoInAnyOrder changes 24 volumes 200 times while guests let go at once, late, or only when they
// are reset, and while there are slots for but some of them.
func TestManyVolumesComeAndGoInAnyOrder(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			draw := rand.New(rand.NewPCG(seed, 7))
			var mu sync.Mutex
			calm := false
			h, d := running(t, func(h *host, _ *daemon) {
				h.slots = 20
				h.lets = func(string) unplug {
					mu.Lock()
					defer mu.Unlock()
					if calm {
						return late
					}
					return unplug(draw.IntN(3))
				}
			})
			for range 200 {
				mu.Lock()
				name, kind, size := fmt.Sprintf("v%02d", draw.IntN(24)), draw.IntN(3), int64(1+draw.IntN(8))<<20
				pause := time.Duration(draw.IntN(8)) * time.Millisecond
				reset := draw.IntN(10) == 0
				mu.Unlock()
				d.want(one, func(want *machine.Desired) {
					_, there := want.Volume(name)
					drop(name)(want)
					switch {
					case there && kind > 0:
					case kind == 2:
						add(far(name, fmt.Sprint(name, "-", size)))(want)
					default:
						add(near(name, size))(want)
					}
				})
				if reset {
					h.with(t, one, func(g *guest) { h.reset(g) })
				}
				time.Sleep(pause)
			}
			mu.Lock()
			calm = true
			mu.Unlock()
			d.want(one, func(want *machine.Desired) { want.Volumes = want.Volumes[:min(len(want.Volumes), 19)] })
			h.with(t, one, func(g *guest) { h.reset(g) })
			d.attached(one)
			d.want(one, func(want *machine.Desired) { want.Volumes = want.Volumes[:1] })
			d.attached(one)
			h.with(t, one, func(g *guest) {
				if n := len(g.cfg.Disks); n != 1 || g.boots != 1 {
					t.Errorf("%d disks are left, %d boots", n, g.boots)
				}
			})
			d.finish()
		})
	}
}

func TestABootDiskThatItsVMMDidNotShowForOnceStaysTheBootDisk(t *testing.T) {
	h, d := running(t, func(h *host, _ *daemon) {
		h.lets = func(string) unplug { t.Error("asked for the boot disk"); return atOnce }
	})
	h.with(t, one, func(g *guest) { h.drop(g, "disk-root") })
	m := d.attached(one)
	if !m.Record.Volumes["root"].Boot {
		t.Errorf("record %+v", m.Record.Volumes["root"])
	}
	d.want(one, change(machine.Volume{Name: "root", Device: "odb", LocalDisk: m.Desired.Volumes[0].LocalDisk}))
	d.until("says so", one, func(m *machine.Machine) bool {
		return condition(m, ConditionVolumes).Reason == ReasonRestartNeeded
	})
	d.finish()
}
