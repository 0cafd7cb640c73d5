// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Request numbers, exit reasons and offsets are those of <linux/kvm.h>; they are part of the kernel's stable ABI.
const (
	kvmGetAPIVersion       = 0xAE00
	kvmCreateVM            = 0xAE01
	kvmCheckExtension      = 0xAE03
	kvmGetVCPUMmapSize     = 0xAE04
	kvmCreateVCPU          = 0xAE41
	kvmSetUserMemoryRegion = 0x4020AE46
	kvmRun                 = 0xAE80

	kvmAPIVersion = 12 // the only one since Linux 2.6.22

	offImmediateExit = 1
	offExitReason    = 8
	offExitData      = 32

	exitIO            = 2
	exitMMIO          = 6
	exitShutdown      = 8
	exitFailEntry     = 9
	exitInternalError = 17
	exitSystemEvent   = 24

	suberrorEmulation = 1
)

const guestMemory = 2 << 20 // bytes

type capability struct {
	number uintptr
	name   string
}

// baseCapabilities are what both hypervisors need on every architecture.
var baseCapabilities = []capability{
	{3, "USER_MEMORY"}, {14, "MP_STATE"}, {25, "IRQ_ROUTING"}, {32, "IRQFD"}, {36, "IOEVENTFD"}, {136, "IMMEDIATE_EXIT"},
}

// trialResult is what the thread of the vCPU reports.
type trialResult struct {
	err  error // nil: the guest ran and its result is right
	took time.Duration
}

// vcpuThread is what the watchdog needs to stop a running vCPU.
type vcpuThread struct {
	mu        sync.Mutex // held while the vCPU is interrupted, so that its state is not unmapped meanwhile
	over      bool
	tid       int
	immediate *byte // kvm_run.immediate_exit
}

func (t *vcpuThread) interrupt() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return
	}
	*t.immediate = 1
	// SIGURG is the signal the Go runtime itself sends to its threads and expects to be spurious. It makes KVM_RUN
	// return; immediate_exit closes the race with a KVM_RUN that has not begun.
	_ = unix.Tgkill(os.Getpid(), t.tid, unix.SIGURG)
}

func (t *vcpuThread) finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}

// trial is one run of the test guest. Tests vary it.
type trial struct {
	path     string
	turns    uint32        // of the guest's loop
	features uint64        // extra instructions the guest may try where the processor has them
	limit    time.Duration // for the run of the guest
}

func probeKVM(ctx context.Context, path string) KVM {
	return trial{path: path, turns: loopCount, features: ^uint64(0), limit: runLimit}.probe(ctx)
}

func (t trial) probe(ctx context.Context) KVM {
	started := make(chan *vcpuThread, 1)
	done := make(chan trialResult, 1)
	go func() { done <- t.try(started) }()

	setup := time.NewTimer(setupLimit)
	defer setup.Stop()
	var thread *vcpuThread
	select {
	case r := <-done:
		return r.verdict()
	case <-setup.C:
		return KVM{Reason: fmt.Sprintf("%s opens, but making a VM was not finished after %v", t.path, setupLimit)}
	case <-ctx.Done():
		return KVM{Reason: "the probe was cancelled: " + context.Cause(ctx).Error()}
	case thread = <-started:
	}

	run := time.NewTimer(t.limit)
	defer run.Stop()
	select {
	case r := <-done:
		return r.verdict()
	case <-run.C:
	case <-ctx.Done():
	}
	return t.stop(ctx, thread, done)
}

// stop stops the vCPU and explains why that was necessary.
func (t trial) stop(ctx context.Context, thread *vcpuThread, done <-chan trialResult) KVM {
	grace := time.NewTimer(graceLimit)
	defer grace.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		thread.interrupt()
		select {
		case r := <-done:
			if ctx.Err() != nil && r.err != nil {
				return KVM{Reason: "the probe was cancelled: " + context.Cause(ctx).Error(), Took: r.took}
			}
			return r.verdict()
		case <-grace.C:
			return KVM{Took: t.limit + graceLimit, Reason: fmt.Sprintf("%s is broken: the test guest was not finished "+
				"after %v and its vCPU ignores the order to stop (its thread was abandoned)", t.path, t.limit)}
		case <-again.C:
		}
	}
}

func (r trialResult) verdict() KVM {
	if r.err != nil {
		return KVM{Reason: r.err.Error(), Took: r.took}
	}
	return KVM{Usable: true, Took: r.took, Reason: fmt.Sprintf("a 64-bit test guest ran correctly in %v",
		r.took.Round(100*time.Microsecond))}
}

// try owns everything it opens, so that it can be abandoned by its caller at any point.
func (t trial) try(started chan<- *vcpuThread) trialResult {
	dev, err := openKVM(t.path)
	if err != nil {
		return trialResult{err: err}
	}
	defer func() { _ = unix.Close(dev) }()
	if err := checkCapabilities(t.path, dev); err != nil {
		return trialResult{err: err}
	}
	vm, err := newTestVM(dev, t)
	if err != nil {
		return trialResult{err: fmt.Errorf("%s opens, but no VM can be made: %w", t.path, err)}
	}
	defer vm.close()

	// KVM wants all calls on a vCPU from one thread, and the watchdog must know which.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := &vcpuThread{tid: unix.Gettid(), immediate: &vm.run[offImmediateExit]}
	defer thread.finish()
	started <- thread
	begin := time.Now()
	err = vm.runGuest()
	took := time.Since(begin)
	if err != nil {
		err = fmt.Errorf("%s opens, but guest kernels do not run on it: %w", t.path, err)
	}
	return trialResult{err: err, took: took}
}

func openKVM(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist):
		return -1, fmt.Errorf("there is no %s: virtualisation is off in the firmware, the kvm module is not loaded, "+
			"or this is a virtual machine or container without it", path)
	case errors.Is(err, fs.ErrPermission):
		return -1, fmt.Errorf("no permission to open %s: %s", path, permissionHint(path))
	default:
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	version, err := ioctl(fd, kvmGetAPIVersion, 0)
	if err == nil && version == kvmAPIVersion {
		return fd, nil
	}
	_ = unix.Close(fd)
	if err != nil {
		return -1, fmt.Errorf("%s is not a KVM device: %w", path, err)
	}
	return -1, fmt.Errorf("%s has KVM API version %d, version %d is needed", path, version, kvmAPIVersion)
}

// permissionHint names the group that owns the device, which is what a person has to join.
func permissionHint(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "ask an administrator for access"
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode().Perm()&0o060 != 0o060 || st.Gid == 0 {
		return fmt.Sprintf("it has mode %04o; run as root or let a group read and write it", info.Mode().Perm())
	}
	group := strconv.Itoa(int(st.Gid))
	if g, err := user.LookupGroupId(group); err == nil {
		group = g.Name
	}
	return fmt.Sprintf("join the group %q (usermod -aG %s USER) and log in again", group, group)
}

func checkCapabilities(path string, dev int) error {
	var missing []string
	for _, c := range append(baseCapabilities[:len(baseCapabilities):len(baseCapabilities)], archCapabilities...) {
		if n, err := ioctl(dev, kvmCheckExtension, c.number); err != nil || n == 0 {
			missing = append(missing, "KVM_CAP_"+c.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s lacks %s, which hypervisors need: the kernel is too old or built without it",
			path, strings.Join(missing, ", "))
	}
	return nil
}

// testVM is a VM with one vCPU and one piece of memory.
type testVM struct {
	trial

	dev, vm, vcpu int
	memory        []byte // guest memory, at guestBase
	run           []byte // struct kvm_run, shared with the kernel
}

func newTestVM(dev int, plan trial) (_ *testVM, err error) {
	t := &testVM{trial: plan, dev: dev, vm: -1, vcpu: -1}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	vm, err := ioctl(dev, kvmCreateVM, vmType)
	if err != nil {
		return nil, fmt.Errorf("create VM: %w", err)
	}
	t.vm = int(vm)
	t.memory, err = unix.Mmap(-1, 0, guestMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("allocate guest memory: %w", err)
	}
	region := struct {
		slot, flags                uint32
		guest, size, userspaceAddr uint64
	}{guest: guestBase, size: guestMemory, userspaceAddr: uint64(uintptr(unsafe.Pointer(&t.memory[0])))}
	if err := ioctlPtr(t.vm, kvmSetUserMemoryRegion, unsafe.Pointer(&region)); err != nil {
		return nil, fmt.Errorf("give the VM memory: %w", err)
	}
	if err := t.prepareVM(); err != nil {
		return nil, err
	}
	vcpu, err := ioctl(t.vm, kvmCreateVCPU, 0)
	if err != nil {
		return nil, fmt.Errorf("create vCPU: %w", err)
	}
	t.vcpu = int(vcpu)
	size, err := ioctl(dev, kvmGetVCPUMmapSize, 0)
	if err != nil {
		return nil, fmt.Errorf("ask for the size of the vCPU state: %w", err)
	}
	t.run, err = unix.Mmap(t.vcpu, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the vCPU state: %w", err)
	}
	return t, t.prepareVCPU()
}

func (t *testVM) close() {
	if t.run != nil {
		_ = unix.Munmap(t.run)
	}
	for _, fd := range []int{t.vcpu, t.vm} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	if t.memory != nil {
		_ = unix.Munmap(t.memory)
	}
}

// runGuest runs the vCPU until the guest reports, dies or is stopped.
func (t *testVM) runGuest() error {
	for {
		_, err := ioctl(t.vcpu, kvmRun, 0)
		switch {
		case err == nil:
			return t.judge(t.word32(offExitReason))
		case !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN):
			return fmt.Errorf("the kernel refused to run the vCPU: %w", err)
		case t.run[offImmediateExit] != 0:
			return t.judgeStopped()
		}
	}
}

// judgeExit explains the exits that mean the same on every architecture.
func (t *testVM) judgeExit(reason uint32) error {
	switch reason {
	case exitShutdown:
		return errors.New("the vCPU met an exception it should not (triple fault)")
	case exitFailEntry:
		return fmt.Errorf("the processor refused to enter the guest (hardware reason %#x)", t.word64(offExitData))
	case exitInternalError:
		if sub := t.word32(offExitData); sub != suberrorEmulation {
			return fmt.Errorf("KVM gave up with internal error %d", sub)
		}
		return errors.New("kernel code is emulated rather than run by the processor, and the emulator failed")
	case exitSystemEvent:
		return fmt.Errorf("the vCPU stopped with system event %d", t.word32(offExitData))
	default:
		return fmt.Errorf("the vCPU stopped with exit reason %d", reason)
	}
}

func (t *testVM) word32(off int) uint32 { return *(*uint32)(unsafe.Pointer(&t.run[off])) }
func (t *testVM) word64(off int) uint64 { return *(*uint64)(unsafe.Pointer(&t.run[off])) }

func ioctl(fd int, request, arg uintptr) (uintptr, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, arg)
	if errno != 0 {
		return 0, errno
	}
	return r, nil
}

func ioctlPtr(fd int, request uintptr, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}
