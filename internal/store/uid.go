// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"

// ByUID returns the machine that carries the UIDLabel with this value, nil if there is none. It answers from an
// index in memory: the poollet asks by this label all the time.
func (s *Store) ByUID(uid string) *machine.Machine {
	if uid == "" {
		return nil
	}
	return s.index.getByUID(uid)
}
