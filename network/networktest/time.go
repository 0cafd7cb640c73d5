// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package networktest

import "time"

// untilJustBefore leaves the parent the time to say what the child did.
func untilJustBefore(deadline time.Time) time.Duration {
	return max(time.Until(deadline)-2*time.Second, time.Second)
}
