// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"encoding/json"
	"fmt"
	"os"
)

// ScriptEnv names the environment variable with the path of the script.
const ScriptEnv = "FAKE_CH_SCRIPT"

// Script says how the fake and its guest behave. The zero value is a well-behaved v53 with a guest
// that obeys. Durations are in milliseconds.
type Script struct {
	// Version is the dialect: "v52", "v53" (default) or "main".
	Version string `json:"version,omitempty"`
	// BuildVersion replaces the string of --version and build_version ("v53.0").
	BuildVersion string `json:"build_version,omitempty"`
	// Control opens the control socket; see ControlSocket.
	Control bool `json:"control,omitempty"`
	// ControlSocket is the path of the control socket, by default "<api-socket>.ctl". It must be set
	// when the API socket comes as a descriptor.
	ControlSocket string `json:"control_socket,omitempty"`

	// StartDelayMS is the wait before the API socket exists.
	StartDelayMS int `json:"start_delay_ms,omitempty"`
	// StartFailure, if set, is printed to stderr as the cause of a start that exits 1.
	StartFailure string `json:"start_failure,omitempty"`
	// ExitAfterMS ends the process that long after the start as a crash does: exit 0 and the events of
	// a clean shutdown. 0 is never.
	ExitAfterMS int `json:"exit_after_ms,omitempty"`
	// KillAfterMS and KillSignal end the process by a signal. 0 is never.
	KillAfterMS int `json:"kill_after_ms,omitempty"`
	// KillSignal is the signal of KillAfterMS, by default 9.
	KillSignal int `json:"kill_signal,omitempty"`
	// Faults are armed from the start, as Control.Arm does later.
	Faults []Fault `json:"faults,omitempty"`

	// BootDelayMS is how long vm.boot and vm.reboot keep the only VMM thread busy.
	BootDelayMS int `json:"boot_delay_ms,omitempty"`
	// AddDelayMS is the same for the add calls of a running machine.
	AddDelayMS int `json:"add_delay_ms,omitempty"`
	// VhostUserTimeoutMS is how long a missing vhost-user socket is waited for; the real one waits
	// 60000, which is the default.
	VhostUserTimeoutMS int `json:"vhost_user_timeout_ms,omitempty"`
	// VhostUserHandshake makes the fake ask the backend for its features and wait for the answer, as
	// the real one does. Without it, connecting is enough.
	VhostUserHandshake bool `json:"vhost_user_handshake,omitempty"`
	// FailReset makes each reset by the guest fail: exit 1, API socket left behind.
	FailReset bool `json:"fail_reset,omitempty"`
	// CheckTaps makes a named tap that does not exist an error. By default taps are not looked at.
	CheckTaps bool `json:"check_taps,omitempty"`
	// CheckTapFDs makes a descriptor of add-net that is no tap fail, as in the real one. By default any
	// descriptor will do.
	CheckTapFDs bool `json:"check_tap_fds,omitempty"`
	// AllowVFIO accepts VFIO devices whose path exists, without opening /dev/vfio.
	AllowVFIO bool `json:"allow_vfio,omitempty"`
	// CheckKernel makes a firmware or kernel that is no ELF or bzImage fail as in the real one. By
	// default any readable file boots.
	CheckKernel bool `json:"check_kernel,omitempty"`

	// GuestBootMS is the time between boot and the first output and reaction of the guest.
	GuestBootMS int `json:"guest_boot_ms,omitempty"`
	// BootText replaces what the guest prints at boot; see BootMarker for the default.
	BootText *string `json:"boot_text,omitempty"`
	// PowerButton is "obey" (default) or "ignore".
	PowerButton string `json:"power_button,omitempty"`
	// PowerButtonMS is the time an obeying guest takes.
	PowerButtonMS int `json:"power_button_ms,omitempty"`
	// Eject is "obey" (default: devices leave after EjectMS) or "hold" (until Control.Eject).
	Eject string `json:"eject,omitempty"`
	// EjectMS is the time an obeying guest takes to eject a device.
	EjectMS int `json:"eject_ms,omitempty"`
	// HoldVcpus keeps removed vCPUs pending, so that the next resize answers 429.
	HoldVcpus bool `json:"hold_vcpus,omitempty"`
	// NoEcho stops the guest from echoing what is typed on serial.
	NoEcho bool `json:"no_echo,omitempty"`
	// SerialCommands makes the guest act on typed letters: p powers off, r resets, f triple-faults.
	SerialCommands bool `json:"serial_commands,omitempty"`
	// NoVsock is a guest without a vsock driver: connections stay open and silent.
	NoVsock bool `json:"no_vsock,omitempty"`
	// QGAPort is the vsock port of a QEMU guest agent; 0 is none.
	QGAPort uint32 `json:"qga_port,omitempty"`
	// EchoPort is a vsock port that echoes; 0 is none.
	EchoPort uint32 `json:"echo_port,omitempty"`
	// GuestAddresses are the addresses (CIDR) the guest agent reports for the first NIC.
	GuestAddresses []string `json:"guest_addresses,omitempty"`
}

// BootMarker is the last line of the default boot text. Before it the guest prints its kernel command
// line ("cmdline <text>"), each SMBIOS OEM string ("oem: <string>"), disk ("disk <serial> <bytes>")
// and NIC ("net <mac>"); lines end in CR LF.
const BootMarker = "fake-guest login:"

// FaultKind is what goes wrong with one API call.
type FaultKind string

// The kinds of faults.
const (
	// FaultExit exits 0 before the call is executed, without events: the VMM is just gone.
	FaultExit FaultKind = "exit"
	// FaultExitAfter executes the call and exits before the answer.
	FaultExitAfter FaultKind = "exit-after"
	// FaultSilence executes the call, holds the answer back for DelayMS (default 10000), then gives it.
	FaultSilence FaultKind = "silence"
	// FaultHang keeps the VMM thread busy for DelayMS before the call is executed; all other calls wait.
	FaultHang FaultKind = "hang"
	// FaultReset resets the connection without executing the call.
	FaultReset FaultKind = "reset"
	// FaultClose executes the call and closes the connection without an answer.
	FaultClose FaultKind = "close"
	// FaultError answers Status and Body without executing the call.
	FaultError FaultKind = "error"
	// FaultKill sends Signal to the process before the call is executed.
	FaultKill FaultKind = "kill"
)

// Fault is armed for calls of one endpoint and fires Count times.
type Fault struct {
	// Endpoint is a name such as "vm.boot"; empty matches every call.
	Endpoint string `json:"endpoint,omitempty"`
	// Kind says what happens.
	Kind FaultKind `json:"kind"`
	// DelayMS is for FaultSilence and FaultHang.
	DelayMS int `json:"delay_ms,omitempty"`
	// Status and Body are for FaultError; Body is sent as it is.
	Status int    `json:"status,omitempty"`
	Body   string `json:"body,omitempty"`
	// Signal is for FaultKill, by default 9.
	Signal int `json:"signal,omitempty"`
	// Count is how often the fault fires: 0 is once, negative for ever.
	Count int `json:"count,omitempty"`
}

// WriteFile stores the script at path for ScriptEnv, with mode 0600.
func (s Script) WriteFile(path string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode script: %w", err)
	}
	return os.WriteFile(path, b, 0o600)
}

// loadScript reads the script named by ScriptEnv; none named is the zero script.
func loadScript(path string) (Script, error) {
	var s Script
	if path == "" {
		return s, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return s, fmt.Errorf("read script: %w", err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("parse script %s: %w", path, err)
	}
	for _, f := range s.Faults {
		if err := f.check(); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (f Fault) check() error {
	switch f.Kind {
	case FaultExit, FaultExitAfter, FaultSilence, FaultHang, FaultReset, FaultClose, FaultError, FaultKill:
		return nil
	default:
		return fmt.Errorf("fault kind %q is unknown", f.Kind)
	}
}
