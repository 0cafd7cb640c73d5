// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package providernet

import (
	"errors"

	"golang.org/x/sys/unix"
)

// bridgeFull reports whether a bridge refused one port more (BR_MAX_PORTS).
func bridgeFull(err error) bool { return errors.Is(err, unix.EXFULL) }
