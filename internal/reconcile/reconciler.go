// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime/debug"
	"sync"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// Reconciler brings machines to what is wanted of them.
type Reconciler struct {
	o     Options
	queue *Queue

	background sync.WaitGroup // of what runs beside the workers while Run does

	mu         sync.Mutex
	sessions   map[string]*session
	failures   map[string]int             // failed rounds in a row, by machine
	waiting    map[string]map[string]bool // machines that wait for an image, by reference
	guests     guestInfo
	unrecorded map[string]time.Time   // when guests were first asked to go down that a full disk kept from being recorded
	seen       map[string]seenDesired // what of a machine's wish it was last queued for
	copies     map[string]copying     // preparations of volumes under way, by machine
	devices    map[string]*devices
	strays     map[string][]stray // what the sweep found, by machine

	removed sync.Mutex // held while the list of removed machines is read or written
}

// copying is the preparation of a volume under way, which may take long.
type copying struct {
	volume machine.Volume
	stop   context.CancelFunc
}

// outdated reports whether nobody waits for what is being prepared any more.
func (c copying) outdated(d *machine.Desired) bool {
	v, wanted := d.Volume(c.volume.Name)
	return d.Deleting() || d.Power == machine.PowerOff || !wanted || !reflect.DeepEqual(v, c.volume)
}

type seenDesired struct {
	generation int64
	deleting   bool
}

func seenOf(m *machine.Machine) seenDesired {
	return seenDesired{generation: m.Desired.Generation, deleting: m.Desired.Deleting()}
}

// New makes a Reconciler; Run starts it.
func New(o Options) (*Reconciler, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	return &Reconciler{
		o: o, queue: NewQueue(o.Now), sessions: map[string]*session{}, failures: map[string]int{},
		waiting: map[string]map[string]bool{}, seen: map[string]seenDesired{},
		unrecorded: map[string]time.Time{},
		guests:     guestInfo{asks: make(chan struct{}, guestAsks), asked: map[string]time.Time{}},
		copies:     map[string]copying{}, devices: map[string]*devices{}, strays: map[string][]stray{},
	}, nil
}

// Run works until ctx ends; then it waits for the steps under way and lets go of all VMMs without touching them.
func (r *Reconciler) Run(ctx context.Context) error {
	for _, m := range r.o.Store.List() {
		r.queue.Add(m.ID)
	}
	r.audit(ctx)
	var wg sync.WaitGroup
	for range r.o.Workers {
		wg.Go(func() { r.work(ctx) })
	}
	wg.Go(func() { r.resync(ctx) })
	wg.Go(func() { r.sweepAll(ctx) })
	for _, name := range sortedKeys(r.o.Networks) {
		wg.Go(func() { r.watchNetwork(ctx, r.o.Networks[name]) })
	}
	<-ctx.Done()
	r.queue.Close()
	wg.Wait()
	r.background.Wait()
	r.closeSessions()
	return nil
}

// Wake asks for a look at one machine now.
func (r *Reconciler) Wake(id string) { r.queue.Add(id) }

// QueueLength is how many machines wait for a look, due or not.
func (r *Reconciler) QueueLength() int { return r.queue.Len() }

// Changed tells of a stored machine (nil = removed). It wakes the machine only if what is wanted of it changed, so
// that our own writes of the record do not wake us.
func (r *Reconciler) Changed(id string, m *machine.Machine) {
	if m == nil {
		r.mu.Lock()
		delete(r.seen, id)
		delete(r.guests.asked, id)
		delete(r.devices, id)
		r.mu.Unlock()
		return
	}
	now := seenOf(m)
	r.mu.Lock()
	before, known := r.seen[id]
	r.seen[id] = now
	if c, ok := r.copies[id]; ok && c.outdated(&m.Desired) {
		c.stop()
	}
	r.mu.Unlock()
	if !known || before != now {
		r.queue.Add(id)
	}
}

// ImageChanged wakes the machines that wait for an image, after its pull ended or failed.
func (r *Reconciler) ImageChanged(ref string) {
	r.mu.Lock()
	ids := r.waiting[ref]
	delete(r.waiting, ref)
	r.mu.Unlock()
	for id := range ids {
		r.unblock(id)
		r.queue.Add(id)
	}
}

// ImageWaiters returns the machines that wait for an image.
func (r *Reconciler) ImageWaiters(ref string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return sortedKeys(r.waiting[ref])
}

func (r *Reconciler) waitForImage(ref, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[ref] == nil {
		r.waiting[ref] = map[string]bool{}
	}
	r.waiting[ref][id] = true
}

// waitNoMore forgets that a machine waits for these images; for any if none is named.
func (r *Reconciler) waitNoMore(id string, refs ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(refs) == 0 {
		refs = sortedKeys(r.waiting)
	}
	for _, ref := range refs {
		delete(r.waiting[ref], id)
		if len(r.waiting[ref]) == 0 {
			delete(r.waiting, ref)
		}
	}
}

// resync looks at every machine now and then, spread over the interval so that they do not come in one burst.
func (r *Reconciler) resync(ctx context.Context) {
	ticker := time.NewTicker(r.o.Resync)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			all := r.o.Store.List()
			for i, m := range all {
				r.queue.AddAfter(m.ID, r.o.Resync*time.Duration(i)/time.Duration(len(all))/2)
			}
		}
	}
}

func (r *Reconciler) work(ctx context.Context) {
	for {
		id, late, ok := r.queue.Get(ctx)
		if !ok {
			return
		}
		r.o.ObserveWait(late)
		wait, err := r.safely(ctx, id)
		switch {
		case err != nil && ctx.Err() == nil:
			wait = r.backoff(id)
			r.o.Logger.Warn("machine not as wanted", "machine", id, "error", err, "retry_in", wait)
			r.queue.AddAfter(id, wait)
		case wait > 0:
			r.queue.AddAfter(id, wait)
		}
		if err == nil && wait == 0 { // one that waits is not as wanted yet: a failed start must not begin from 0 each time
			r.mu.Lock()
			delete(r.failures, id)
			r.mu.Unlock()
		}
		r.queue.Done(id)
	}
}

// safely keeps a panic in one machine's work from taking the others down.
func (r *Reconciler) safely(ctx context.Context, id string) (wait time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.o.Logger.Error("panic", "machine", id, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return r.Reconcile(ctx, id)
}

func (r *Reconciler) backoff(id string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.failures[id]
	r.failures[id]++
	return jitter(capped(100*time.Millisecond, n, r.o.MaxBackoff))
}

// capped doubles base n times, up to most.
func capped(base time.Duration, n int, most time.Duration) time.Duration {
	d := base
	for range n {
		if d *= 2; d >= most {
			return most
		}
	}
	return min(d, most)
}

// jitter shortens d by up to a fifth, so that machines which failed together do not come back together.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// errRounds means that rounds of planning did not settle; it is retried with backoff like any failure.
var errRounds = errors.New("the machine does not settle")

// maxRounds bounds how often one call plans anew. A start takes two rounds, a crash three, a deletion three.
const maxRounds = 12

// Reconcile brings one machine to what is wanted and returns how long to wait for the next look (0 = until
// something is heard). It must not be called twice at once for one machine; Run sees to that.
func (r *Reconciler) Reconcile(ctx context.Context, id string) (time.Duration, error) {
	for range maxRounds {
		m, err := r.o.Store.Get(id)
		if machine.IsKind(err, machine.NotFound) {
			r.dropSession(id)
			r.waitNoMore(id)
			r.mu.Lock()
			delete(r.devices, id)
			r.mu.Unlock()
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		r.clearStrays(ctx, m)
		view, err := r.observe(ctx, m)
		if err != nil {
			return 0, r.report(ctx, id, "observe", fmt.Errorf("observe: %w", err))
		}
		plan := MakePlan(view)
		if len(plan.Steps) == 0 && view.Process == ProcessIntended {
			return plan.Wait, nil // nothing new is known: why the start failed stays to be seen
		}
		if len(plan.Steps) == 0 {
			if view.Process == ProcessAlive && view.VM.State == vmm.StateRunning {
				r.lookAfter(ctx, id)
			}
			if plan.Devices { // the machine itself is as wanted, whatever its devices wait for
				r.mu.Lock()
				delete(r.failures, id)
				r.mu.Unlock()
			}
			return plan.Wait, r.publish(ctx, view, plan.Notes)
		}
		if plan.Devices {
			if err := r.announce(ctx, view, plan); err != nil {
				return 0, err
			}
			if err := r.runDevices(ctx, view.Machine, plan.Steps); err != nil {
				return 0, err
			}
			continue
		}
		wait, err := r.run(ctx, view.Machine, plan.Steps)
		if err != nil || wait > 0 {
			return wait, err
		}
	}
	return 0, errRounds
}

// run does the steps in order. wait > 0 means that a step has to wait for something and says how long at most. When
// the wish for which they were planned has changed, what is left of them is not done: a machine whose deletion was asked
// for while its image was copied must not be started first. A device of a machine that goes for good holds up no other
// device, only what comes after all of them.
func (r *Reconciler) run(ctx context.Context, planned *machine.Machine, steps []Step) (wait time.Duration, err error) {
	for _, step := range steps {
		apart := planned.Desired.Deleting() && (step.Name == StepNICRelease || step.Name == StepVolumeDelete)
		if !apart && (wait > 0 || err != nil) {
			break
		}
		changed, waits, failure := r.runShown(ctx, planned, step)
		if changed {
			return 0, nil
		}
		err = errors.Join(err, failure)
		if waits > 0 && (wait == 0 || waits < wait) {
			wait = waits
		}
		if ctx.Err() != nil {
			break
		}
	}
	return wait, err
}

// runShown does one step, and shows what it waits for or why it failed. changed is that of runOne.
func (r *Reconciler) runShown(ctx context.Context, planned *machine.Machine, step Step) (changed bool, wait time.Duration, err error) {
	id, start := planned.ID, r.o.Now()
	changed, err = r.runOne(ctx, planned, step)
	took := r.o.Now().Sub(start)
	if changed {
		return true, 0, nil
	}
	r.o.Observe(step.Name, took, err)
	var pending *pendingError
	if errors.As(err, &pending) {
		return false, pending.wait, r.progress(ctx, id, step, pending)
	}
	if err != nil {
		return false, 0, r.report(ctx, id, string(step.Name), fmt.Errorf("%s: %w", step, err))
	}
	r.o.Logger.Info("step done", "machine", id, "step", step.Name, "target", step.Target, "took", took)
	return false, 0, nil
}

// runOne does one step. changed means that it was not done, or not to its end, since the wish has changed.
func (r *Reconciler) runOne(ctx context.Context, planned *machine.Machine, step Step) (changed bool, err error) {
	sctx, stop := context.WithCancel(ctx)
	defer stop()
	if v, ok := planned.Desired.Volume(step.Target); ok && step.Name == StepVolumePrepare { // before the wish is read, so that no change of it falls between
		r.setCopy(planned.ID, copying{volume: v, stop: stop})
		defer r.setCopy(planned.ID, copying{})
	}
	m, err := r.o.Store.Get(planned.ID)
	if err != nil {
		return false, err
	}
	if seenOf(m) != seenOf(planned) {
		return true, nil
	}
	err = r.step(sctx, m, step)
	return err != nil && sctx.Err() != nil && ctx.Err() == nil, err
}

func (r *Reconciler) setCopy(id string, c copying) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.stop == nil {
		delete(r.copies, id)
		return
	}
	r.copies[id] = c
}

// String returns "name" or "name(target)".
func (s Step) String() string {
	if s.Target == "" {
		return string(s.Name)
	}
	return string(s.Name) + "(" + s.Target + ")"
}

// pendingError says that a step cannot go on yet although nothing failed; something will wake the machine.
type pendingError struct {
	reason, message string
	wait            time.Duration // look again after this at the latest
}

func (e *pendingError) Error() string { return e.message }
