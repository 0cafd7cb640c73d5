// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package qmp

// PeerPID is 0: only Linux tells who listens on a socket.
func (c *Client) PeerPID() int { return 0 }
