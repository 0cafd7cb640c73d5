// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// away returns the data of a volume that were put away.
func (h *host) away(name string) (data []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, number := range h.data {
		if strings.HasPrefix(key, one+"/"+name+".retired-") {
			data = append(data, number)
		}
	}
	return data
}

func imaged(name, image string) machine.Volume {
	return machine.Volume{Name: name, LocalDisk: &machine.LocalDisk{Image: &image}}
}

func TestTheDataOfADiskWhoseNameIsTakenByAnotherAreKeptForAWhile(t *testing.T) {
	for name, trouble := range map[string]string{"at once": "", "not at first": "volume.retire", "without being recorded": "volume.retired"} {
		t.Run(name, func(t *testing.T) {
			h, d := running(t, func(_ *host, d *daemon) { d.tweak = func(o *Options) { o.KeepDetached = time.Hour } })
			d.want(one, add(near("data", 1<<20)))
			d.attached(one)
			number := h.data[one+"/data"]
			if trouble != "" {
				h.fail(trouble, errors.New("a broken disk"))
			}
			d.want(one, change(imaged("data", "registry/other:1")))
			if trouble != "" {
				d.until("says so", one, func(m *machine.Machine) bool {
					return strings.Contains(condition(m, ConditionVolumes).Message, "a broken disk")
				})
				d.stop()
				h.fail(trouble, nil)
				d.start(nil)
			}
			m := d.attached(one)
			if kept := h.away("data"); len(kept) != 1 || kept[0] != number || h.data[one+"/data"] == number {
				t.Errorf("kept %v of %d, the guest has %d", kept, number, h.data[one+"/data"])
			}
			for name, rec := range m.Record.Volumes {
				if strings.Contains(name, "retired") && (rec.IsLeaving() || machine.ValidateName("name", name) != nil) {
					t.Errorf("%s: %+v", name, rec)
				}
			}
			d.finish() // they go with the machine
		})
	}
}

func TestDataThatWerePutAwayGoAfterTheirTime(t *testing.T) {
	h, d := running(t, func(_ *host, d *daemon) { d.tweak = func(o *Options) { o.KeepDetached = 300 * time.Millisecond } })
	d.want(one, add(imaged("data", "registry/a:1")))
	d.attached(one)
	began := time.Now()
	d.want(one, change(imaged("data", "registry/b:1")))
	m := d.until("removed", one, func(m *machine.Machine) bool {
		return d.told.has("VolumePutAway") && d.asWanted(m) && len(m.Record.Volumes) == 2 && len(h.away("data")) == 0
	})
	if kept := time.Since(began); kept < 300*time.Millisecond {
		t.Errorf("kept %s: %+v", kept, m.Record.Volumes)
	}
	d.finish()
}

func TestALongNameMakesARetiredNameThatIsOne(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, name := range []string{"a", strings.Repeat("a", machine.MaxNameLength), strings.Repeat("-", 60)} {
		if got := retiredName("a"+name[1:], at); machine.ValidateName("name", got) != nil || !strings.HasSuffix(got, ".retired-1767323045000") {
			t.Errorf("%s becomes %s", name, got)
		}
	}
}
