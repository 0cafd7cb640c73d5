// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package apinet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"

	"k8s.io/client-go/dynamic"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// Name is the plugin's name in configuration and records.
const Name = "apinet"

// Access gives a client of the API server. Connect waits until there is one or ctx ends; the client stays good over a
// rotation of its certificate. Err says why there is none so far.
type Access interface {
	Connect(ctx context.Context) (dynamic.Interface, error)
	Err() error
}

// Functions gives functions of the host's PCI bus to VMMs, and back.
type Functions interface {
	// Bind gives the function at an address to vfio-pci on behalf of owner. Idempotent.
	Bind(ctx context.Context, address, owner string) error
	// Restore gives every function that owner has back to the driver it had before; nil if there is none.
	Restore(ctx context.Context, owner string) error
}

// Taps gives VMMs what they can open. Its scheme is Name.
type Taps interface {
	// Connect returns the tap that a VMM can open to be at the device that the network named, whose address is mac.
	// Idempotent. macvtap.ErrNoDevice, macvtap.ErrNotOwner.
	Connect(ctx context.Context, device, scheme string, ref network.Ref, mac string) (tap string, err error)
	// Find returns the tap that Connect returned, and changes nothing.
	Find(ctx context.Context, device, scheme string, ref network.Ref) (tap string)
	// Disconnect removes what Connect made for an interface; nil if that is nothing.
	Disconnect(ctx context.Context, scheme string, ref network.Ref) error
}

// Options is what the plugin is made of.
type Options struct {
	Access Access
	// Node is this host's name in ironcore-net.
	Node string
	// Provider names the program: its label is "<provider>.ironcore.dev/machine-id", its field manager
	// "networking.ironcore.dev/<provider>".
	Provider string
	// StateID is that of the state directory. Objects of another one are never taken for leftovers.
	StateID string
	// Functions is needed where networks hand out PCI functions; without it such an interface fails, saying so.
	Functions Functions
	// Taps is needed where the data plane holds the taps that it hands out; without it they are given to VMMs as they are.
	Taps   Taps
	Logger *slog.Logger // default: none
}

// Plugin implements network.Plugin. Run must be running.
type Plugin struct {
	o    Options
	keys keys

	mu      sync.Mutex
	client  dynamic.Interface             // nil until connected
	synced  bool                          // objects is complete
	deaf    error                         // why the API server tells nothing now
	objects map[network.Ref][]object      // as last heard, by who they belong to; more than one while a network changes
	gone    map[string]bool               // uids that were seen to go, so that an answer under way does not bring them back
	waiting map[network.Ref]bool          // asked for before the list was complete
	readers map[chan network.Ref]struct{} // of events
}

var _ network.Plugin = (*Plugin)(nil)

// New makes the plugin.
func New(o Options) (*Plugin, error) {
	switch {
	case o.Access == nil:
		return nil, errors.New("network plugin apinet: Access is needed")
	case o.Node == "":
		return nil, errors.New("network plugin apinet: the name of this node is needed (--apinet-node-name)")
	case !label.MatchString(o.Provider):
		return nil, fmt.Errorf("network plugin apinet: provider %q is no DNS label", o.Provider)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Plugin{
		o: o, keys: keysOf(o.Provider), objects: map[network.Ref][]object{}, gone: map[string]bool{},
		waiting: map[network.Ref]bool{}, readers: map[chan network.Ref]struct{}{},
	}, nil
}

// Name returns "apinet".
func (p *Plugin) Name() string { return Name }

// Validate checks network ids and addresses.
func (p *Plugin) Validate(_ string, nics []network.Interface) error {
	for i, nic := range nics {
		if _, err := parseNetworkID(nic.NetworkID); err != nil {
			return &network.FieldError{Index: i, Field: "network_id", Message: err.Error()}
		}
		if at, err := checkIPs(nic.IPs); err != nil {
			return &network.FieldError{Index: i, Field: fmt.Sprintf("ips[%d]", at), Message: err.Error()}
		}
	}
	return nil
}

// Identity holds all that is immutable in the object: the guest's device goes with it.
func (p *Plugin) Identity(nic network.Interface) string {
	id, err := parseNetworkID(nic.NetworkID)
	if err != nil {
		return nic.NetworkID + " " + strings.Join(nic.IPs, ",")
	}
	return id.namespace + "/" + id.network + " " + strings.Join(nic.IPs, ",")
}

// Ready says why the plugin cannot do anything now, nil if it can.
func (p *Plugin) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.trouble(); err != nil {
		return err
	}
	if !p.synced {
		return errors.New("no complete list of network interfaces from the API server yet")
	}
	return nil
}

// trouble says what is wrong with the access to the API server, if that is known; it must be called with the lock held.
func (p *Plugin) trouble() error {
	if err := p.o.Access.Err(); err != nil {
		return err
	}
	return p.deaf
}

// brief leaves the request's whole address out of an error, which differs from one try to the next and says nothing that
// the server's name does not.
func brief(err error) error {
	var request *url.Error
	if !errors.As(err, &request) {
		return err
	}
	host := request.URL
	if u, parsed := url.Parse(request.URL); parsed == nil {
		host = u.Host
	}
	return fmt.Errorf("API server %s: %w", host, request.Err)
}

// Events tells of interfaces whose object changed.
func (p *Plugin) Events(ctx context.Context) <-chan network.Ref {
	out := make(chan network.Ref, 1)
	in := make(chan network.Ref, 1024)
	p.mu.Lock()
	p.readers[in] = struct{}{}
	p.mu.Unlock()
	go func() {
		defer close(out)
		defer func() {
			p.mu.Lock()
			delete(p.readers, in)
			p.mu.Unlock()
		}()
		coalesce(ctx, in, out)
	}()
	return out
}

// coalesce hands on from in to out, each interface once however often it came while out was not read.
func coalesce(ctx context.Context, in <-chan network.Ref, out chan<- network.Ref) {
	var order []network.Ref
	waiting := map[network.Ref]bool{}
	for {
		var next network.Ref
		var send chan<- network.Ref
		if len(order) > 0 {
			next, send = order[0], out
		}
		select {
		case <-ctx.Done():
			return
		case ref := <-in:
			if !waiting[ref] {
				waiting[ref] = true
				order = append(order, ref)
			}
		case send <- next:
			order = order[1:]
			delete(waiting, next)
		}
	}
}

// tell must be called with the lock held. A reader that is so far behind that its channel is full is a hint short; its
// own slow look finds it.
func (p *Plugin) tell(ref network.Ref) {
	for reader := range p.readers {
		select {
		case reader <- ref:
		default:
		}
	}
}
