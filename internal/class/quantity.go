// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package class

import "math"

// Host is what the server has in total, in use or not.
type Host struct {
	CPUs        int64
	MemoryBytes int64
	// Extra is the total of every other resource by its capability name. What is not in it, the
	// server does not have.
	Extra map[string]int64
}

// Reserve is what machines may not have of the host.
type Reserve struct {
	// CPUs and MemoryBytes stay with the host.
	CPUs        int64
	MemoryBytes int64
	// MemoryPerMachine is what a hypervisor process needs beside its guest's memory, in bytes.
	MemoryPerMachine int64
	// CPUOvercommit is how many virtual CPUs one host CPU may carry; below 1, and so by default, it is 1.
	CPUOvercommit float64
	// MaxMachines bounds the number of machines; 0 is no bound.
	MaxMachines int64
}

// Quantity is how many machines of a class fit on the host while it is empty: the caller of the
// IRI subtracts the machines in use itself. It is never negative, and 0 for a class that lacks cpu
// or memory or needs a resource that the host does not have.
func Quantity(c Class, h Host, r Reserve) int64 {
	fit := min(
		share(virtualCPUs(h, r), c.CPU()),
		share(less(h.MemoryBytes, r.MemoryBytes), more(c.MemoryBytes(), r.MemoryPerMachine)),
	)
	for _, name := range c.Extra() {
		fit = min(fit, share(h.Extra[name], c.Resources[name]))
	}
	if r.MaxMachines > 0 {
		fit = min(fit, r.MaxMachines)
	}
	return fit
}

func virtualCPUs(h Host, r Reserve) int64 {
	free := less(h.CPUs, r.CPUs)
	if !(r.CPUOvercommit > 1) { // so written, NaN counts as 1
		return free
	}
	// 100 × 1.15 is 114.99999999999999 in floating point, but 115 for whoever wrote 1.15.
	v := math.Floor(float64(free)*r.CPUOvercommit + 1e-6)
	if v >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(v)
}

func share(have, need int64) int64 {
	if have <= 0 || need <= 0 {
		return 0
	}
	return have / need
}

// less subtracts without falling below zero.
func less(a, b int64) int64 {
	if a <= 0 {
		return 0
	}
	return max(0, a-max(0, b))
}

// more adds without overflow, and leaves a missing need missing.
func more(a, b int64) int64 {
	switch {
	case a <= 0:
		return 0
	case b <= 0:
		return a
	case a > math.MaxInt64-b:
		return math.MaxInt64
	}
	return a + b
}

// Capacity is what machines may have of a host together.
type Capacity struct {
	CPUs        int64 // virtual ones
	MemoryBytes int64
	Machines    int64 // 0 is no bound
}

// Free is what the machines of all classes may have together, while the host is empty.
func Free(h Host, r Reserve) Capacity {
	return Capacity{
		CPUs: virtualCPUs(h, r), MemoryBytes: less(h.MemoryBytes, r.MemoryBytes), Machines: max(0, r.MaxMachines),
	}
}
