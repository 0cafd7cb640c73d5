// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"net/http"
	"os"
	"time"
)

// Ping asks for version and process id. A timeout does not mean that the VMM is dead: one slow call blocks all
// others inside the VMM.
func (c *Client) Ping(ctx context.Context) (Ping, error) {
	var p Ping
	err := c.do(ctx, call{method: http.MethodGet, name: "vmm.ping", timeout: c.timeouts.Query, answer: &p})
	return p, err
}

// Info asks for state and configuration; ErrNotCreated if no VM is defined.
func (c *Client) Info(ctx context.Context) (Info, error) {
	var i Info
	err := c.do(ctx, call{method: http.MethodGet, name: "vm.info", timeout: c.timeouts.Query, answer: &i})
	return i, err
}

// Counters asks for the counters of the devices; ErrNotRunning unless the guest runs.
func (c *Client) Counters(ctx context.Context) (Counters, error) {
	var n Counters
	err := c.do(ctx, call{method: http.MethodGet, name: "vm.counters", timeout: c.timeouts.Query, answer: &n})
	return n, err
}

// Create stores the configuration and opens the consoles. The server validates little of it before Boot. When it
// fails over the consoles the configuration stays, and Delete is needed before the next try.
func (c *Client) Create(ctx context.Context, cfg VMConfig) error {
	return c.put(ctx, "vm.create", c.timeouts.Long, cfg)
}

// Boot starts the guest. A failure late in it leaves a half VM that says Created and refuses Boot with
// ErrAlreadyCreated until Shutdown.
func (c *Client) Boot(ctx context.Context) error { return c.put(ctx, "vm.boot", c.timeouts.Long, nil) }

// Pause stops the virtual CPUs.
func (c *Client) Pause(ctx context.Context) error {
	return c.put(ctx, "vm.pause", c.timeouts.Change, nil)
}

// Resume lets a paused guest go on.
func (c *Client) Resume(ctx context.Context) error {
	return c.put(ctx, "vm.resume", c.timeouts.Change, nil)
}

// Shutdown cuts the guest's power and keeps the configuration; ErrNotRunning when there is nothing to cut.
func (c *Client) Shutdown(ctx context.Context) error {
	return c.put(ctx, "vm.shutdown", c.timeouts.Change, nil)
}

// Reboot tears the VM down and builds it again from the present configuration.
func (c *Client) Reboot(ctx context.Context) error {
	return c.put(ctx, "vm.reboot", c.timeouts.Long, nil)
}

// Delete cuts the guest's power and forgets the VM. It succeeds when there is none.
func (c *Client) Delete(ctx context.Context) error {
	return c.put(ctx, "vm.delete", c.timeouts.Change, nil)
}

// PowerButton presses the guest's power button; nobody says whether the guest noticed.
func (c *Client) PowerButton(ctx context.Context) error {
	return c.put(ctx, "vm.power-button", c.timeouts.Change, nil)
}

// ShutdownVMM ends the VMM, cutting the guest's power. When the process ends before it answers, that is success.
func (c *Client) ShutdownVMM(ctx context.Context) error {
	err := c.put(ctx, "vmm.shutdown", c.timeouts.Change, nil)
	if errors.Is(err, errLostReply) {
		return nil
	}
	return err
}

// AddDisk plugs a disk in; the answer is empty when the guest does not run.
func (c *Client) AddDisk(ctx context.Context, d Disk) (PCIDevice, error) {
	return c.add(ctx, "vm.add-disk", d)
}

// AddNet plugs a network interface in; the answer is empty when the guest does not run. The descriptors of taps, one
// for each pair of queues, go beside the request. They stay the caller's to close; those that the server got of a
// request that it refused stay open in it until it ends.
func (c *Client) AddNet(ctx context.Context, n Net, taps ...*os.File) (PCIDevice, error) {
	var d PCIDevice
	err := c.do(ctx, call{method: http.MethodPut, name: "vm.add-net", timeout: c.timeouts.Long, body: n, answer: &d, files: taps})
	return d, err
}

// AddDevice plugs a VFIO device in; the answer is empty when the guest does not run.
func (c *Client) AddDevice(ctx context.Context, d Device) (PCIDevice, error) {
	return c.add(ctx, "vm.add-device", d)
}

// RemoveDevice asks the guest to let go of a device. Only the event device-removed, or the device tree without the
// device, says that it did.
func (c *Client) RemoveDevice(ctx context.Context, id string) error {
	body := struct {
		ID string `json:"id"`
	}{id}
	return c.put(ctx, "vm.remove-device", c.timeouts.Change, body)
}

// ResizeDisk tells the guest a disk's new size in bytes. The server shrinks a raw file without asking back.
func (c *Client) ResizeDisk(ctx context.Context, id string, size int64) error {
	body := struct {
		ID   string `json:"id"`
		Size int64  `json:"desired_size"`
	}{id, size}
	return c.put(ctx, "vm.resize-disk", c.timeouts.Change, body)
}

// Close drops connections that are in use by nobody.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) put(ctx context.Context, name string, timeout time.Duration, body any) error {
	return c.do(ctx, call{method: http.MethodPut, name: name, timeout: timeout, body: body})
}

func (c *Client) add(ctx context.Context, name string, body any) (PCIDevice, error) {
	var d PCIDevice
	err := c.do(ctx, call{method: http.MethodPut, name: name, timeout: c.timeouts.Long, body: body, answer: &d})
	return d, err
}
