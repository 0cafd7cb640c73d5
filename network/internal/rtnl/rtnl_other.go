// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package rtnl

import (
	"context"
	"errors"
	"net"
	"net/netip"
)

var errLinux = errors.New("network devices need Linux")

// Links returns none: there are no devices that this package could have made.
func Links(context.Context) ([]Link, error) { return nil, nil }

// ByName fails.
func ByName(context.Context, string) (Link, error) { return Link{}, errLinux }

// Set fails.
func Set(context.Context, int, Change) error { return errLinux }

// SetPort fails.
func SetPort(context.Context, int, Port) error { return errLinux }

// AddBridge fails.
func AddBridge(context.Context, string, net.HardwareAddr) error { return errLinux }

// AddMacvtap fails.
func AddMacvtap(context.Context, string, int, net.HardwareAddr) error { return errLinux }

// Delete fails.
func Delete(context.Context, int) error { return errLinux }

// AddAddress fails.
func AddAddress(context.Context, int, netip.Prefix) error { return errLinux }

// SetNeighbour fails.
func SetNeighbour(context.Context, int, netip.Addr, net.HardwareAddr) error { return errLinux }

// DefaultRoutes fails.
func DefaultRoutes(context.Context) ([]int, error) { return nil, errLinux }

// Watch fails.
func Watch(context.Context) (<-chan Event, error) { return nil, errLinux }

// WatchTables fails.
func WatchTables(context.Context) (<-chan struct{}, error) { return nil, errLinux }
