// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"slices"
	"time"
)

// State is what a client is told about a machine.
type State string

// The states. Powered off is Suspended, since the machinepoollet knows no other word for it.
const (
	Pending     State = "Pending"
	Running     State = "Running"
	Suspended   State = "Suspended"
	Terminating State = "Terminating"
	Terminated  State = "Terminated"
)

// Record is what this daemon did and must undo or must not repeat. Only the reconciler writes it, and before the
// act that it protects.
type Record struct {
	State              State                   `json:"state,omitempty"` // as last shown, so that a restart shows no flicker
	ObservedGeneration int64                   `json:"observedGeneration,omitempty"`
	Image              *ImageRecord            `json:"image,omitempty"`
	VMM                *VMMRecord              `json:"vmm,omitempty"` // set before a VMM is spawned, cleared when it is proven gone
	Volumes            map[string]VolumeRecord `json:"volumes,omitempty"`
	NICs               map[string]NICRecord    `json:"networkInterfaces,omitempty"`
	Exit               *ExitRecord             `json:"exit,omitempty"`    // how the last VMM ended, when nobody asked it to
	GuestOS            string                  `json:"guestOS,omitempty"` // as its agent said last, such as "debian 12"
	Restarts           int                     `json:"restarts,omitempty"`
	RestartAt          time.Time               `json:"restartAt,omitzero"`   // not before; the backoff after a crash
	Shutdown           *ShutdownRecord         `json:"shutdown,omitempty"`   // set while a guest is asked to go down
	KeptOff            int64                   `json:"keptOff,omitempty"`    // generation at which the guest turned itself off and is left so
	Conditions         []Condition             `json:"conditions,omitempty"` // sorted by type
}

// ImageRecord pins the image a machine was built from, so that a moved tag cannot change it.
type ImageRecord struct {
	Ref    string `json:"ref"`
	Digest string `json:"digest"` // manifest digest of the platform's image
}

// VMMRecord says which VMM process belongs to the machine.
type VMMRecord struct {
	Driver      string           `json:"driver"`
	Marker      string           `json:"marker"`             // in the process' environment; finds it when Process is nil
	Process     *ProcessIdentity `json:"process,omitempty"`  // nil between intent and spawn
	Ignition    string           `json:"ignition,omitempty"` // transport chosen for this launch
	LaunchedAt  time.Time        `json:"launchedAt"`
	BootedAt    *time.Time       `json:"bootedAt,omitempty"`    // set when the guest was seen running: an idle VM then means "stopped"
	StopAskedAt *time.Time       `json:"stopAskedAt,omitempty"` // set before we stop it: its end is then no crash
	KillReason  string           `json:"killReason,omitempty"`  // set before we kill it unasked: its end is then a crash for this reason
}

// ProcessIdentity proves which process is meant; see package process, whose Identity has the same fields.
type ProcessIdentity struct {
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"startTicks"`
	BootID     string `json:"bootID"`
	Marker     string `json:"marker"`
	Unit       string `json:"unit,omitempty"`
}

// VolumeRecord is a volume that was prepared, or may have been.
type VolumeRecord struct {
	Plugin    string `json:"plugin"`
	Identity  string `json:"identity,omitempty"` // of the medium, as the plugin tells; empty in records of older versions
	Device    string `json:"device,omitempty"`   // as it was wanted when it was prepared: the serial follows from it
	Remote    bool   `json:"remote,omitempty"`   // the data are kept elsewhere and never removed
	Handle    string `json:"handle,omitempty"`   // set once it was prepared: then there may be data
	Path      string `json:"path,omitempty"`
	Serial    string `json:"serial,omitempty"` // what the guest sees, at most 20 bytes
	SizeBytes int64  `json:"sizeBytes,omitempty"`
	Attached  bool   `json:"attached,omitempty"` // the guest has it, and it is what is wanted

	Held       bool      `json:"held,omitempty"`       // the plugin may hold something on this host: maps, sockets, processes
	Given      bool      `json:"given,omitempty"`      // the living VMM may have it; nothing of it may be released
	Boot       bool      `json:"boot,omitempty"`       // given as the disk that the guest boots from
	GuestBytes int64     `json:"guestBytes,omitempty"` // the size that the VMM was told
	AskedAt    time.Time `json:"askedAt,omitzero"`     // since when the guest is to let go of it
	Replug     bool      `json:"replug,omitempty"`     // to be taken out and put in again, for the guest to see its size
	RetiredAt  time.Time `json:"retiredAt,omitzero"`   // since when nobody wants it; its data are kept for a while
	Doomed     bool      `json:"doomed,omitempty"`     // its data are being removed
}

// IsLeaving reports whether v, which nobody wants any more, is still on its way out; kept data are not shown.
func (v VolumeRecord) IsLeaving() bool { return v.RetiredAt.IsZero() && !v.Doomed }

// NICRecord is a network interface that was prepared, or may have been.
type NICRecord struct {
	Plugin     string    `json:"plugin,omitempty"`     // that may have made it; empty = nothing of it is there
	Identity   string    `json:"identity,omitempty"`   // as the plugin tells; empty in records of older versions
	Definition string    `json:"definition,omitempty"` // hash of what the plugin was told last
	Handle     string    `json:"handle,omitempty"`     // never empty once it was set: a client would clear its own
	MAC        string    `json:"mac,omitempty"`
	Attached   bool      `json:"attached,omitempty"`
	Given      bool      `json:"given,omitempty"`  // the living VMM may have it
	Wired      string    `json:"wired,omitempty"`  // what it was given for it; empty in records of older versions
	Replug     bool      `json:"replug,omitempty"` // to be taken out and put in again, since it leads to nothing any more
	AskedAt    time.Time `json:"askedAt,omitzero"`
}

// ExitRecord is the unasked end of a VMM.
type ExitRecord struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`           // "SIGKILL", "exit code 1", "guest powered off", …
	Output string    `json:"output,omitempty"` // the last lines that the VMM printed
}

// ShutdownRecord says how far an orderly shutdown is.
type ShutdownRecord struct {
	StartedAt    time.Time  `json:"startedAt"`
	Deadline     time.Time  `json:"deadline"` // then the power is cut
	AgentAskedAt *time.Time `json:"agentAskedAt,omitempty"`
	AgentError   string     `json:"agentError,omitempty"`
	ButtonAt     *time.Time `json:"buttonAt,omitempty"` // the last time
	ButtonError  string     `json:"buttonError,omitempty"`
	PowerCut     bool       `json:"powerCut,omitempty"`
}

// IsKeptOff reports whether the guest turned itself off and nobody has turned the machine on since.
func (m *Machine) IsKeptOff() bool {
	d, kept := &m.Desired, m.Record.KeptOff
	if kept == 0 || d.Power != PowerOn {
		return false
	}
	if d.PowerGeneration == 0 {
		return kept == d.Generation
	}
	return kept >= d.PowerGeneration
}

// ConditionStatus is the status of a condition.
type ConditionStatus string

// The condition statuses.
const (
	ConditionTrue    ConditionStatus = "True"
	ConditionFalse   ConditionStatus = "False"
	ConditionUnknown ConditionStatus = "Unknown"
)

// Condition is one thing an operator may want to know about a machine.
type Condition struct {
	Type           string          `json:"type"`
	Status         ConditionStatus `json:"status"`
	Reason         string          `json:"reason,omitempty"`
	Message        string          `json:"message,omitempty"`
	LastTransition time.Time       `json:"lastTransition"`
}

// SetCondition puts c in its place and reports whether anything changed. LastTransition moves only when the
// status does.
func (r *Record) SetCondition(c Condition) bool {
	for i, old := range r.Conditions {
		if old.Type == c.Type {
			if old.Status == c.Status {
				c.LastTransition = old.LastTransition
			}
			r.Conditions[i] = c
			return old != c
		}
		if old.Type > c.Type {
			r.Conditions = append(r.Conditions[:i], append([]Condition{c}, r.Conditions[i:]...)...)
			return true
		}
	}
	r.Conditions = append(r.Conditions, c)
	return true
}

// ClearCondition removes the condition of a type that has nothing to say.
func (r *Record) ClearCondition(kind string) {
	r.Conditions = slices.DeleteFunc(r.Conditions, func(c Condition) bool { return c.Type == kind })
}
