// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"net"
	"os"
)

// consoles are the host ends that vm.create opens: they exist before the machine and belong to it from
// boot on.
type consoles struct {
	serial  *net.UnixListener // Socket
	file    *os.File          // File
	pty     *pty              // Pty
	console *pty              // the virtio console's pty
	vfile   *os.File          // the virtio console's file
	debug   *pty
}

// openConsoles opens the consoles in the order of the real one: console, serial, debug console. Paths
// of new ptys are written into cfg.
func openConsoles(cfg *VMConfig) (*consoles, *chainError) {
	c := &consoles{}
	if err := c.open(cfg); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *consoles) open(cfg *VMConfig) *chainError {
	var err error
	switch con := &cfg.Console.CommonConsoleConfig; con.Mode {
	case "Socket":
		return failed("No socket option support for console device")
	case "Pty":
		if c.console, err = openPTY(); err == nil {
			con.File = ptr(c.console.path)
		}
	case "File":
		c.vfile, err = os.Create(deref(con.File))
	}
	if err != nil {
		return failed("Error creating console device", osText(err))
	}
	switch ser := &cfg.Serial.CommonConsoleConfig; ser.Mode {
	case "Socket":
		c.serial, err = listenUnix(deref(ser.Socket))
	case "Pty":
		if c.pty, err = openPTY(); err == nil {
			ser.File = ptr(c.pty.path)
		}
	case "File":
		c.file, err = os.Create(deref(ser.File))
	}
	if err != nil {
		return failed("Error creating console device", osText(err))
	}
	switch dbg := &cfg.DebugConsole; dbg.Mode {
	case "Socket":
		return failed("No socket option support for console device")
	case "Pty":
		if c.debug, err = openPTY(); err != nil {
			return failed("Error creating console device", osText(err))
		}
		dbg.File = ptr(c.debug.path)
	}
	return nil
}

// close gives the descriptors back. It removes no socket: that is the running serial port's job.
func (c *consoles) close() {
	if c == nil {
		return
	}
	if c.serial != nil {
		_ = c.serial.Close()
	}
	for _, f := range []*os.File{c.file, c.vfile} {
		if f != nil {
			f.Close()
		}
	}
	for _, p := range []*pty{c.pty, c.console, c.debug} {
		if p != nil {
			p.close()
		}
	}
}

// listenUnix binds a socket that stays in the file system when the listener is closed.
func listenUnix(path string) (*net.UnixListener, error) {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false)
	return ln, nil
}
