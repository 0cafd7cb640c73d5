// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"

	godbus "github.com/godbus/dbus/v5"
)

// NewSystemdOn is NewSystemd on the bus at this address.
func NewSystemdOn(ctx context.Context, opts Options, address string) (*Systemd, error) {
	return newSystemd(ctx, opts, func(life context.Context) (*godbus.Conn, error) {
		conn, err := godbus.Dial(address, godbus.WithContext(life))
		if err != nil {
			return nil, err
		}
		return greet(conn)
	})
}

// Ping asks systemd for its version, which works once it owns its name.
func (s *Systemd) Ping(ctx context.Context) error {
	b, err := s.connect(ctx)
	if err != nil {
		return err
	}
	_, err = b.GetManagerProperty("Version")
	return err
}
