// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package apinet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// Run connects and watches until ctx ends. It never fails for good: what is wrong is told by Ready and retried.
func (p *Plugin) Run(ctx context.Context) error {
	client, err := p.o.Access.Connect(ctx)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // an end that was asked for is no failure
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.client = client
	p.mu.Unlock()
	informer := cache.NewSharedIndexInformer(p.listWatch(client), &unstructured.Unstructured{}, 0, cache.Indexers{})
	if err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		if !errors.Is(err, io.EOF) { // which is how an API server ends a watch now and then
			p.o.Logger.Warn("watch of network interfaces interrupted", "error", brief(err))
		}
	}); err != nil {
		return err
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { p.heard(obj, false) },
		UpdateFunc: func(_, obj any) { p.heard(obj, false) },
		DeleteFunc: func(obj any) { p.heard(obj, true) },
	})
	if err != nil {
		return err
	}
	go p.awaitSync(ctx, registration.HasSynced)
	informer.RunWithContext(ctx)
	return nil
}

// listWatch asks for the objects of this provider alone; the field selector of the node is not served by every API
// server, so that those of other nodes are left out here.
func (p *Plugin) listWatch(client dynamic.Interface) cache.ListerWatcher {
	all := client.Resource(resource)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = p.keys.machine
			list, err := all.List(ctx, o)
			p.hears(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = p.keys.machine
			w, err := all.Watch(ctx, o)
			p.hears(ctx, err)
			return w, err
		},
	}
}

// hears notes whether the API server answers.
func (p *Plugin) hears(ctx context.Context, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf = nil
	if err != nil {
		p.deaf = fmt.Errorf("watch network interfaces: %w", brief(err))
	}
}

func (p *Plugin) awaitSync(ctx context.Context, synced func() bool) {
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.synced = true
	p.o.Logger.Info("network interfaces listed", "objects", len(p.objects), "node", p.o.Node)
	for ref := range p.objects {
		p.tell(ref)
	}
	for ref := range p.waiting {
		p.tell(ref)
	}
	clear(p.waiting)
}

func (p *Plugin) heard(obj any, gone bool) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return
	}
	o := p.keys.read(u)
	p.mu.Lock()
	defer p.mu.Unlock()
	if gone {
		p.forget(o)
	} else {
		p.note(o)
	}
	p.tell(o.ref())
}

// note takes an object in; it must be called with the lock held.
func (p *Plugin) note(o object) {
	if o.node != p.o.Node || o.machine == "" || o.name != objectName(o.ref()) || p.gone[o.uid] {
		return
	}
	list := p.objects[o.ref()]
	if i := slices.IndexFunc(list, func(x object) bool { return x.uid == o.uid }); i >= 0 {
		list = slices.Clone(list)
		list[i] = o
	} else {
		list = append(slices.Clone(list), o)
	}
	p.objects[o.ref()] = list
}

// applied takes in what the API server answered, unless the watch has told more of that object meanwhile, and returns
// the newest there is.
func (p *Plugin) applied(o object) object {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, known := range p.objects[o.ref()] {
		if known.uid == o.uid {
			return known
		}
	}
	p.note(o)
	return o
}

// asked notes that an object is being deleted before the watch says so; it must be called with the lock held.
func (p *Plugin) asked(o object) {
	list := slices.Clone(p.objects[o.ref()])
	for i := range list {
		if list[i].uid == o.uid {
			list[i].deleting = true
			p.objects[o.ref()] = list
		}
	}
}

// forget takes an object out; it must be called with the lock held.
func (p *Plugin) forget(o object) {
	const remembered = 4096
	if len(p.gone) >= remembered {
		clear(p.gone)
	}
	p.gone[o.uid] = true
	list := slices.DeleteFunc(slices.Clone(p.objects[o.ref()]), func(x object) bool { return x.uid == o.uid })
	if len(list) == 0 {
		delete(p.objects, o.ref())
		return
	}
	p.objects[o.ref()] = list
}

// known returns what is known of an interface, and whether that is complete; if it is not, an event will tell when.
func (p *Plugin) known(ref network.Ref) (objects []object, client dynamic.Interface, complete bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.synced {
		p.waiting[ref] = true
	}
	return p.objects[ref], p.client, p.synced
}

// callTimeout bounds one call to the API server: a worker must not hang on it.
const callTimeout = 5 * time.Second
