// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// ctlRequest is one line a test sends on the control socket.
type ctlRequest struct {
	Op     string `json:"op"`
	Text   string `json:"text,omitempty"`
	ID     string `json:"id,omitempty"`
	Signal int    `json:"signal,omitempty"`
	Fault  *Fault `json:"fault,omitempty"`
}

// ctlReply is the line that answers it.
type ctlReply struct {
	Error string `json:"error,omitempty"`
	Facts *Facts `json:"facts,omitempty"`
}

// Facts is what the fake has seen so far.
type Facts struct {
	// Calls lists the API calls ("PUT vm.boot") and guest agent commands ("qga guest-ping") in order.
	Calls []string `json:"calls"`
	// PowerButton counts presses on a booted machine.
	PowerButton int `json:"power_button"`
	// SerialInput is everything typed on the serial line.
	SerialInput string `json:"serial_input"`
	// State is the state vm.info would show, empty when nothing is created.
	State string `json:"state"`
	// Pending lists devices that were removed and not ejected.
	Pending []string `json:"pending"`
	// OpenFDs is the number of NIC descriptors the configuration holds.
	OpenFDs int `json:"open_fds"`
}

// serveControl answers control connections until the listener is closed.
func (v *vmm) serveControl(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			go v.controlConn(c)
		}
	}
}

func (v *vmm) controlConn(c net.Conn) {
	defer c.Close()
	sc := bufio.NewScanner(c)
	sc.Buffer(nil, 8<<20)
	for sc.Scan() {
		var req ctlRequest
		var reply ctlReply
		if err := json.Unmarshal(sc.Bytes(), &req); err != nil {
			reply.Error = err.Error()
		} else if err := v.control(&req, &reply); err != nil {
			reply.Error = err.Error()
		}
		b, err := json.Marshal(reply)
		if err != nil {
			return
		}
		if _, err := c.Write(append(b, '\n')); err != nil {
			return
		}
	}
}

// control executes one request. Faults are armed without the worker, which may be busy on purpose.
func (v *vmm) control(req *ctlRequest, reply *ctlReply) error {
	switch req.Op {
	case "arm":
		if req.Fault == nil {
			return errors.New("no fault given")
		}
		if err := req.Fault.check(); err != nil {
			return err
		}
		v.faults.arm(*req.Fault)
		return nil
	case "disarm":
		v.faults.disarm()
		return nil
	case "kill":
		killSelf(syscall.Signal(req.Signal))
		return nil
	}
	err := errors.New("the VMM is gone")
	v.do(func() { err = v.controlWorker(req, reply) })
	return err
}

func (v *vmm) controlWorker(req *ctlRequest, reply *ctlReply) error {
	switch req.Op {
	case "facts":
		reply.Facts = v.gather()
		return nil
	case "power-button":
		v.script.PowerButton = req.Text
		return nil
	case "eject-mode":
		v.script.Eject = req.Text
		if v.vm != nil {
			v.vm.guest.keep(req.Text == "hold")
		}
		return nil
	case "fail-reset":
		v.script.FailReset = true
		return nil
	}
	if v.vm == nil {
		return errors.New("no machine is booted")
	}
	return v.controlGuest(req)
}

// controlGuest makes the guest do something.
func (v *vmm) controlGuest(req *ctlRequest) error {
	switch req.Op {
	case "serial":
		v.vm.serial.write([]byte(req.Text))
	case "poweroff":
		v.guestPowerOff()
	case "reset":
		v.guestReset()
	case "crash":
		// An error of a vCPU ends the process with the events and the exit code of a clean shutdown,
		// whatever --no-shutdown says.
		v.log.Error("VCPU generated error")
		_ = v.vmmShutdown()
	case "panic":
		if v.cfg.Pvpanic {
			v.mon.emit("guest", "panic", "event", "Panic")
		}
	case "eject":
		if !v.vm.eject(req.ID) {
			return fmt.Errorf("device %q is not waiting to be ejected", req.ID)
		}
	case "release-vcpus":
		v.vm.heldVcpus = false
	default:
		return fmt.Errorf("operation %q is unknown", req.Op)
	}
	return nil
}

func (v *vmm) gather() *Facts {
	v.mu.Lock()
	f := v.facts
	f.Calls = append([]string{}, f.Calls...)
	v.mu.Unlock()
	f.Pending = []string{}
	if v.cfg != nil {
		f.State = stateCreated
		for _, n := range v.cfg.Net {
			f.OpenFDs += len(n.Fds)
		}
	}
	if v.vm != nil {
		f.State = v.vm.state
		for id, n := range v.vm.nodes {
			if n.pending {
				f.Pending = append(f.Pending, id)
			}
		}
	}
	return &f
}
