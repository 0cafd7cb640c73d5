// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	inputEventLen = 24 // struct input_event on 64-bit: two 8-byte times, type, code, value
	eventKey      = 1  // EV_KEY
	keyPower      = 116
)

// powerButtons listens to every input device; a device that is plugged later is found by the next scan.
type powerButtons struct {
	guest *guest
	open  map[string]bool
}

func (b *powerButtons) scan() {
	for _, name := range names("/dev/input") {
		if !strings.HasPrefix(name, "event") || b.open[name] {
			continue
		}
		f, err := os.Open(filepath.Join("/dev/input", name))
		if err != nil {
			continue
		}
		b.open[name] = true
		go b.read(f)
	}
}

func (b *powerButtons) read(f *os.File) {
	defer f.Close()
	event := make([]byte, inputEventLen)
	for {
		if _, err := io.ReadFull(f, event); err != nil {
			return
		}
		kind, code := binary.NativeEndian.Uint16(event[16:]), binary.NativeEndian.Uint16(event[18:])
		value := int32(binary.NativeEndian.Uint32(event[20:]))
		if kind != eventKey || code != keyPower || value != 1 {
			continue
		}
		if b.guest.option("chp.ignore_power_button") {
			b.guest.say("guest: power button ignored")
			continue
		}
		b.guest.powerOff(unix.LINUX_REBOOT_CMD_POWER_OFF, "guest: power button")
	}
}
