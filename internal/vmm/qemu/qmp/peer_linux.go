// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qmp

import (
	"syscall"
)

// PeerPID returns the pid of the process that listens on the socket, 0 when
// the kernel does not tell (another pid namespace).
func (c *Client) PeerPID() int {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}
