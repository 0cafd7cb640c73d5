// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// controlTimeout bounds one control request: the worker may be busy with a slow call.
const controlTimeout = 90 * time.Second

// Control steers a running fake whose script has Control set. Each method makes its own connection, so
// a Control is safe for concurrent use.
type Control struct {
	// Socket is the path of the control socket.
	Socket string
}

// ControlFor is the Control of the fake whose API socket is at path, with the default control socket.
func ControlFor(apiSocket string) Control { return Control{Socket: apiSocket + ".ctl"} }

// Serial makes the guest print text.
func (c Control) Serial(text string) error { return c.call(ctlRequest{Op: "serial", Text: text}) }

// PowerOff makes the guest power itself off. The process may be gone before it can answer; that is no
// error.
func (c Control) PowerOff() error { return c.last(ctlRequest{Op: "poweroff"}) }

// Reset makes the guest reset itself. When the reset cannot be done the process exits 1.
func (c Control) Reset() error { return c.last(ctlRequest{Op: "reset"}) }

// FailReset makes each later reset by the guest fail.
func (c Control) FailReset() error { return c.call(ctlRequest{Op: "fail-reset"}) }

// Crash ends the VMM as an error of a vCPU does: exit 0 and the events of a clean shutdown.
func (c Control) Crash() error { return c.last(ctlRequest{Op: "crash"}) }

// Panic makes the guest kernel panic; without pvpanic in the configuration nobody notices.
func (c Control) Panic() error { return c.call(ctlRequest{Op: "panic"}) }

// Eject makes the guest let go of a removed device.
func (c Control) Eject(id string) error { return c.call(ctlRequest{Op: "eject", ID: id}) }

// HoldEject says whether the guest keeps the devices that are removed from now on, or lets go of them, and of those
// that were removed meanwhile.
func (c Control) HoldEject(hold bool) error {
	mode := "obey"
	if hold {
		mode = "hold"
	}
	return c.call(ctlRequest{Op: "eject-mode", Text: mode})
}

// IgnorePowerButton says whether the guest ignores the power button from now on.
func (c Control) IgnorePowerButton(ignore bool) error {
	mode := "obey"
	if ignore {
		mode = "ignore"
	}
	return c.call(ctlRequest{Op: "power-button", Text: mode})
}

// ReleaseVcpus ends the pending removal of vCPUs (see Script.HoldVcpus).
func (c Control) ReleaseVcpus() error { return c.call(ctlRequest{Op: "release-vcpus"}) }

// Arm adds a fault for coming API calls.
func (c Control) Arm(f Fault) error { return c.call(ctlRequest{Op: "arm", Fault: &f}) }

// Disarm removes all armed faults.
func (c Control) Disarm() error { return c.call(ctlRequest{Op: "disarm"}) }

// Kill makes the process die by a signal.
func (c Control) Kill(signal int) error { return c.last(ctlRequest{Op: "kill", Signal: signal}) }

// Facts returns what the fake has seen.
func (c Control) Facts() (Facts, error) {
	reply, err := c.exchange(ctlRequest{Op: "facts"})
	if err != nil {
		return Facts{}, err
	}
	if reply.Facts == nil {
		return Facts{}, errors.New("control reply has no facts")
	}
	return *reply.Facts, nil
}

func (c Control) call(req ctlRequest) error {
	_, err := c.exchange(req)
	return err
}

var errNoReply = errors.New("control connection ended without a reply")

// last sends a request that may end the process.
func (c Control) last(req ctlRequest) error {
	if _, err := c.exchange(req); err != nil && !errors.Is(err, errNoReply) {
		return err
	}
	return nil
}

func (c Control) exchange(req ctlRequest) (ctlReply, error) {
	var reply ctlReply
	conn, err := net.DialTimeout("unix", c.Socket, controlTimeout)
	if err != nil {
		return reply, fmt.Errorf("connect to fake's control socket: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(controlTimeout)); err != nil {
		return reply, fmt.Errorf("set control deadline: %w", err)
	}
	b, err := json.Marshal(req)
	if err != nil {
		return reply, fmt.Errorf("encode control request: %w", err)
	}
	if _, err := conn.Write(append(b, '\n')); err != nil {
		return reply, fmt.Errorf("send control request %s: %w", req.Op, err)
	}
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return reply, fmt.Errorf("%s: %w", req.Op, errNoReply)
	}
	if err := json.Unmarshal(line, &reply); err != nil {
		return reply, fmt.Errorf("parse control reply: %w", err)
	}
	if reply.Error != "" {
		return reply, fmt.Errorf("control request %s: %s", req.Op, reply.Error)
	}
	return reply, nil
}
