// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

const (
	// vhostPatience is how long a vhost-user server may take to answer. The VMM would wait a minute for one that is not
	// there and for ever for one that is silent, and answer nobody meanwhile.
	vhostPatience = 5 * time.Second

	// The protocol's header: request, flags (version 1; bit 2 marks an answer), size of the payload; in host order.
	vhostGetFeatures = 1
	vhostVersion     = 1
	vhostAnswer      = 1 << 2
	vhostHeaderSize  = 12
)

// pingVhostUser asks a server for its features, as the VMM will, and hangs up. A server that has another client does
// not answer.
func pingVhostUser(ctx context.Context, socket string) error {
	doing := "ask the vhost-user server at " + socket
	ctx, cancel := context.WithTimeout(ctx, vhostPatience)
	defer cancel()
	err := askFeatures(ctx, socket)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED):
		return machine.Wrap(machine.Unavailable, fmt.Errorf("nobody serves it: %w", err), doing)
	case err != nil:
		return machine.Wrap(machine.Unavailable, fmt.Errorf("it does not answer, or another VMM is its client: %w", err), doing)
	}
	return nil
}

func askFeatures(ctx context.Context, socket string) error {
	c, err := dial(ctx, socket)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	header := make([]byte, vhostHeaderSize)
	binary.NativeEndian.PutUint32(header, vhostGetFeatures)
	binary.NativeEndian.PutUint32(header[4:], vhostVersion)
	if _, err := c.Write(header); err != nil {
		return err
	}
	answer := make([]byte, vhostHeaderSize+8)
	if _, err := io.ReadFull(c, answer); err != nil {
		return err
	}
	request, flags := binary.NativeEndian.Uint32(answer), binary.NativeEndian.Uint32(answer[4:])
	if request != vhostGetFeatures || flags&vhostAnswer == 0 {
		return fmt.Errorf("the answer %x is none of a vhost-user server", answer[:vhostHeaderSize])
	}
	return nil
}
