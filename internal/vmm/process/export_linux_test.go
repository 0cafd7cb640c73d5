// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"

	godbus "github.com/godbus/dbus/v5"
)

// NewSystemdOn is NewSystemd on the bus at this address, with its own word on
// cgroups.
func NewSystemdOn(ctx context.Context, address string, cgroup func(int) ([]byte, error)) (*Systemd, error) {
	s, err := newSystemd(ctx, Options{}, func(life context.Context) (*godbus.Conn, error) {
		conn, err := godbus.Dial(address, godbus.WithContext(life))
		if err != nil {
			return nil, err
		}
		return greet(conn)
	})
	if err == nil {
		s.cgroup = cgroup
	}
	return s, err
}
