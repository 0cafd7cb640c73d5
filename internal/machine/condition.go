// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package machine

// Condition returns the condition of a type, nil if there is none. It must not be changed.
func (r *Record) Condition(kind string) *Condition {
	for i := range r.Conditions {
		if r.Conditions[i].Type == kind {
			return &r.Conditions[i]
		}
	}
	return nil
}
