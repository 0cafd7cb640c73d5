// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package cloudhypervisor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

// Name is the driver's name in records.
const Name = "cloud-hypervisor"

const (
	archAMD64 = "amd64"
	archARM64 = "arm64"
)

// Options are the options of New.
type Options struct {
	Binary   string // absolute path of cloud-hypervisor; required
	Version  string // what "Binary --version" printed; when empty the floor is checked at Connect alone
	Firmware string // absolute path of the firmware for machines without a kernel; may be empty
	Arch     string // GOARCH of host and guests, "amd64" or "arm64"; default this one's

	// Landlock confines each VMM to the paths that its machine names; see the package's documentation.
	Landlock bool
	// LandlockPaths may be read and written besides: directories that later volumes and devices come from.
	LandlockPaths []string

	// SharedMemory gives every guest memory that other processes can map, without which no vhost-user disk can be
	// plugged in later. A machine that is defined with such a disk gets it anyway. Default off: transparent huge pages
	// serve private memory better.
	SharedMemory bool

	// OpenTap opens a tap that exists, once for each pair of queues (0 = once, on a tap without IFF_MULTI_QUEUE). The
	// files are closed when the VMM has them. ErrTapByName makes the VMM open it by its name. Default: /dev/net/tun.
	OpenTap func(name string, queues int) ([]*os.File, error)

	Env      []string     // "KEY=value" for the VMM; default none
	Timeouts api.Timeouts // default those of package api
	Logger   *slog.Logger // default none
}

// Driver is the driver. It holds no state for a machine but the followers of open connections.
type Driver struct {
	opts     Options
	log      *slog.Logger
	follower *api.Follower
}

var _ vmm.Driver = (*Driver)(nil)

// New returns the driver; a version below the floor is machine.FailedPrecondition. Close it in the end.
func New(o Options) (*Driver, error) {
	if o.Arch == "" {
		o.Arch = runtime.GOARCH
	}
	if o.OpenTap == nil {
		o.OpenTap = openTap
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Version != "" {
		if err := CheckVersion(o.Version); err != nil {
			return nil, fmt.Errorf("%s: %w", o.Binary, err)
		}
	}
	// A wrong timeout shows here and not at the first machine.
	if _, err := api.New(api.Options{Socket: apiSocketName, Timeouts: o.Timeouts}); err != nil {
		return nil, machine.Wrap(machine.Invalid, err, "set up driver "+Name)
	}
	follower, err := api.NewFollower(o.Logger)
	if err != nil {
		return nil, machine.Wrap(machine.Unavailable, err, "set up driver "+Name)
	}
	return &Driver{opts: o, log: o.Logger, follower: follower}, nil
}

func (o Options) validate() error {
	for field, path := range map[string]string{"binary": o.Binary, "firmware": o.Firmware} {
		if path != "" && !filepath.IsAbs(path) {
			return machine.InvalidField(field, "%q is not an absolute path", path)
		}
	}
	for _, path := range o.LandlockPaths {
		if !filepath.IsAbs(path) {
			return machine.InvalidField("landlockPaths", "%q is not an absolute path", path)
		}
	}
	switch {
	case o.Binary == "":
		return machine.InvalidField("binary", "must not be empty")
	case o.Arch != archAMD64 && o.Arch != archARM64:
		return machine.InvalidField("arch", "%q is not supported, only %s and %s", o.Arch, archAMD64, archARM64)
	}
	return nil
}

// Close ends the following of events; the connections get none any more. VMMs are not touched.
func (d *Driver) Close() error { return d.follower.Close() }

// Name returns Name.
func (d *Driver) Name() string { return Name }

// Capabilities returns what the driver can do. The counts leave a slot for the config disk, one for the guest
// agent's and one to spare of the 31 that a PCI segment has, less those of the random number generator and of the panic
// device.
func (d *Driver) Capabilities() vmm.Capabilities {
	c := vmm.Capabilities{
		Ignition:     []vmm.IgnitionTransport{vmm.IgnitionDisk},
		TapNIC:       true,
		DirectKernel: true,
		GuestAgent:   true,
		Firmware:     d.opts.Firmware != "",
		MaxDisks:     maxDisks,
		MaxNICs:      maxNICs,
		HotPlug:      true,
		PCINIC:       true,
		Qcow2:        true,
		DiskLimits:   true,

		VhostUserDisk: true,
		Cache:         cachePolicies(),
	}
	if d.opts.Arch == archAMD64 {
		c.Ignition = []vmm.IgnitionTransport{vmm.IgnitionSMBIOS, vmm.IgnitionDisk}
		c.SMBIOSMaxBytes = smbiosMaxBytes
	}
	return c
}

// Connect opens a control connection; see vmm.Driver. Events are those from now on.
func (d *Driver) Connect(ctx context.Context, ref vmm.Ref) (vmm.VM, error) {
	p := pathsOf(ref)
	client, err := api.New(api.Options{Socket: p.api, Timeouts: d.opts.Timeouts})
	if err != nil {
		return nil, machine.Wrap(machine.Invalid, err, "connect to VMM")
	}
	v := &conn{driver: d, ref: ref, paths: p, client: client, events: newEventQueue(), turn: make(chan struct{}, 1)}
	if err := v.await(ctx); err != nil {
		v.release()
		return nil, err
	}
	// The caller asks for the state next, so that no event falls between the two.
	v.unfollow, err = d.follower.Follow(p.events, v.events.take)
	if err != nil {
		// A machine without events can still be managed, one without a connection cannot.
		d.log.Warn("VMM's events are not followed", "machine", ref.MachineID, "error", err)
	}
	return v, nil
}

const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = 250 * time.Millisecond
)

// await asks until the VMM answers or ctx ends. A VMM may be busy with a boot that an earlier daemon began.
func (v *conn) await(ctx context.Context) error {
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		err := v.meet(ctx)
		if err == nil || !machine.IsKind(err, machine.Unavailable) {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return machine.Wrap(machine.Unavailable, fmt.Errorf("%w: %w", ctx.Err(), err), "connect to VMM")
		}
	}
}

// meet learns the VMM's version and whether the VM, if there is one, is the machine's.
func (v *conn) meet(ctx context.Context) error {
	ping, err := v.client.Ping(ctx)
	if err != nil {
		return fail("connect to VMM", err)
	}
	if err := CheckVersion(ping.Version); err != nil {
		return fmt.Errorf("connect to VMM: %w", err)
	}
	if v.major, err = ParseVersion(ping.Version); err != nil {
		return err
	}
	_, _, err = v.identify(ctx)
	return err
}
