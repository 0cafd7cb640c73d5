// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// The group and the message of include/uapi/linux/netfilter/nf_tables.h that tell of removed tables.
const (
	groupTables      = 1 << (7 - 1)
	messageGoneTable = 10<<8 | 2
)

// Watch tells of changed devices and of new default routes until ctx ends, then closes the channel. A reader that is too slow gets Lost.
func Watch(ctx context.Context) (<-chan Event, error) {
	events := make(chan Event, 64)
	err := follow(ctx, unix.NETLINK_ROUTE, unix.RTMGRP_LINK|unix.RTMGRP_IPV4_ROUTE, func(messages []syscall.NetlinkMessage) {
		if messages == nil {
			send(ctx, events, Event{Lost: true})
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.RTM_NEWLINK, unix.RTM_DELLINK:
				if l, ok := parseLink(m.Data); ok {
					send(ctx, events, Event{Link: l, Gone: m.Header.Type == unix.RTM_DELLINK})
				}
			case unix.RTM_NEWROUTE:
				if len(m.Data) >= unix.SizeofRtMsg && m.Data[1] == 0 { // to everywhere
					send(ctx, events, Event{Route: true})
				}
			}
		}
	}, func() { close(events) })
	return events, err
}

// WatchTables tells whenever some table of nftables was removed, until ctx ends, then closes the channel.
func WatchTables(ctx context.Context) (<-chan struct{}, error) {
	events := make(chan struct{}, 1)
	err := follow(ctx, unix.NETLINK_NETFILTER, groupTables, func(messages []syscall.NetlinkMessage) {
		gone := messages == nil
		for _, m := range messages {
			gone = gone || m.Header.Type == messageGoneTable
		}
		if gone {
			select {
			case events <- struct{}{}:
			default:
			}
		}
	}, func() { close(events) })
	return events, err
}

func send(ctx context.Context, events chan<- Event, e Event) {
	select {
	case events <- e:
	case <-ctx.Done():
	}
}

// follow reads a multicast group in the background until ctx ends; tell gets nil when messages were lost.
func follow(ctx context.Context, protocol int, group uint32, tell func([]syscall.NetlinkMessage), end func()) error {
	fd, err := open(protocol, group)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20)
	f := os.NewFile(uintptr(fd), "netlink") // lets the runtime wait and Close wake the reader
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	go func() {
		defer end()
		defer func() { _ = f.Close() }()
		defer stop()
		buf := make([]byte, 64<<10)
		for ctx.Err() == nil {
			n, err := f.Read(buf)
			switch {
			case errors.Is(err, unix.ENOBUFS):
				tell(nil)
			case err != nil:
				return
			default:
				if messages, err := syscall.ParseNetlinkMessage(append([]byte(nil), buf[:n]...)); err == nil {
					tell(messages)
				}
			}
		}
	}()
	return nil
}
