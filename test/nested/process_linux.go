// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package nested

import "syscall"

// endWithUs lets the kernel end a child when this process ends, however it does: an emulated machine that nobody
// watches would use up two processors for ever.
func endWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
