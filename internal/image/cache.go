// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	defaultMaxPulls = 3
	defaultRetryMax = 30 * time.Second
	retryMin        = time.Second
	// tagFreshness is how long the answer for a tag is used without asking the registry again.
	tagFreshness = time.Minute
	// maxIdleEntries bounds what is remembered about references nobody pulls now.
	maxIdleEntries = 1024
)

// Blob is one verified file of an image. It may have holes. It must not be written to.
type Blob struct {
	Path      string
	Digest    digest.Digest
	Size      int64 // bytes
	MediaType string
}

// Image is a complete, verified image in the cache. Callers share its blobs and must not change it.
type Image struct {
	Ref         string        // as asked; from List a tag that means this image, or ""
	Digest      digest.Digest // of the manifest of the selected platform: what a machine's record pins
	CommandLine string        // kernel command line, "" if the image gives none

	// What the image consists of; nil when absent, at least one is there.
	RootFS, Kernel, Initramfs, SquashFS, UKI, ISO *Blob

	config ocispec.Descriptor
}

// slots returns the blob fields by role.
func (i *Image) slots() [roleISO + 1]**Blob {
	return [...]**Blob{
		roleRootFS: &i.RootFS, roleKernel: &i.Kernel, roleInitramfs: &i.Initramfs,
		roleSquashFS: &i.SquashFS, roleUKI: &i.UKI, roleISO: &i.ISO,
	}
}

// digests names every blob of the image but its index.
func (i *Image) digests() []digest.Digest {
	all := []digest.Digest{i.Digest, i.config.Digest}
	for _, slot := range i.slots() {
		if b := *slot; b != nil {
			all = append(all, b.Digest)
		}
	}
	return all
}

func (i *Image) withRef(ref string) *Image {
	c := *i
	c.Ref = ref
	return &c
}

// Clock tells the time.
type Clock interface{ Now() time.Time }

type wallClock struct{}

func (wallClock) Now() time.Time { return time.Now() }

// Options configure a Cache. Only Dir is required.
type Options struct {
	Dir               string            // created if missing; used by one process at a time
	PlainHTTP         []string          // host or host:port of registries that are asked without TLS; exact match
	DockerConfig      string            // docker config file with credentials, "" for none; read anew for each login
	CredentialHelpers bool              // let helpers named in DockerConfig be executed; default: inline entries only
	Platform          ocispec.Platform  // default: linux on the architecture of this program
	MaxPulls          int               // pulls running at the same time; default 3
	RetryMax          time.Duration     // longest pause after a failure; default 30 s
	Logger            *slog.Logger      // default: none
	Clock             Clock             // default: the wall clock
	Transport         http.RoundTripper // default: like http.DefaultTransport with shorter time-outs
	// Observer hears events, each pull's in order, from the pull's goroutine and with no lock held. A slow observer
	// delays its pull and Close, never Get.
	Observer func(Event)
	// Budget bounds what the cache takes of the disk, and Reserve is what it leaves free there. Both make unreferenced
	// images go and refuse pulls; neither makes a referenced image go. A zero Budget is no bound; Reserve is at least
	// 64 MiB, so that the state store can still write.
	Budget, Reserve Amount
	// References tells which images are needed, by whom. It is asked before each removal and must be quick. Without it
	// no image is ever removed, since nobody knows.
	References func(context.Context) ([]Use, error)
	// SweepInterval is how often Run looks at the limits; default 1 minute. Leftovers are looked for once an hour.
	SweepInterval time.Duration
	// FileSystem measures the file system of a directory; default: ask the kernel.
	FileSystem func(dir string) (Space, error)
}

// withDefaults checks the options and fills in what was left out.
func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Dir == "":
		return o, errors.New("image cache: Dir is required")
	case o.MaxPulls < 0:
		return o, fmt.Errorf("image cache: MaxPulls is %d, want at least 1", o.MaxPulls)
	case o.RetryMax < 0:
		return o, fmt.Errorf("image cache: RetryMax is %s, want more than 0", o.RetryMax)
	case o.SweepInterval < 0:
		return o, fmt.Errorf("image cache: SweepInterval is %s, want more than 0", o.SweepInterval)
	}
	for name, a := range map[string]Amount{"Budget": o.Budget, "Reserve": o.Reserve} {
		if a.Bytes < 0 || a.Percent < 0 || a.Percent > 100 || a.Bytes > 0 && a.Percent > 0 {
			return o, fmt.Errorf("image cache: %s is %+v, want bytes or 0 to 100 percent", name, a)
		}
	}
	if o.SweepInterval == 0 {
		o.SweepInterval = defaultSweep
	}
	if o.MaxPulls == 0 {
		o.MaxPulls = defaultMaxPulls
	}
	if o.RetryMax == 0 {
		o.RetryMax = defaultRetryMax
	}
	if o.Platform.OS == "" {
		o.Platform.OS = "linux" // of the guest, whatever the daemon runs on
	}
	if o.Platform.Architecture == "" {
		o.Platform.Architecture = runtime.GOARCH
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = wallClock{}
	}
	if o.Observer == nil {
		o.Observer = func(Event) {}
	}
	if o.FileSystem == nil {
		o.FileSystem = fileSystem
	}
	return o, nil
}

// Cache holds images and pulls those that are asked for. Its methods may be called concurrently.
type Cache struct {
	opts   Options
	disk   *disk
	client *client
	blobs  keyedLock
	slots  chan struct{} // one token a running pull

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	pulls  sync.WaitGroup

	room    sync.Mutex    // held by the pull that looks for room
	sweeper sync.Mutex    // held while files are removed; taken after room
	pulled  chan struct{} // tells Run that the cache grew
	counts  counters

	mu      sync.Mutex
	closed  bool                          // guarded by mu
	running int                           // guarded by mu
	entries map[string]*entry             // guarded by mu; by canonical reference
	loaded  map[digest.Digest]*Image      // guarded by mu; by digest of index or manifest
	proven  map[digest.Digest]fingerprint // guarded by mu; blobs whose bytes were proven, and the file that held them
	holds   map[digest.Digest]int         // guarded by mu; how many pulls or checks need a blob
	leases  map[digest.Digest]time.Time   // guarded by mu; until when a blob that was handed out stays
	touched map[digest.Digest]time.Time   // guarded by mu; when the use of an image was last written down
}

// entry is what is known about one canonical reference. All but the atomic fields is guarded by Cache.mu.
type entry struct {
	ref         reference
	done, total atomic.Int64
	owed        atomic.Int64 // bytes that the running pull has still to write
	verifying   atomic.Bool  // what is read now was in the cache already

	held []digest.Digest // what the running pull needs

	waiting    []string // spellings of the reference to be told about the running pull; nil when none runs
	top        digest.Digest
	freshUntil time.Time
	failure    *PullFailedError
	failures   int // since the last success
}

// New opens a cache, creating its directory where needed, and removes partial downloads older than a day.
func New(o Options) (*Cache, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	cl, err := newClient(o)
	if err != nil {
		return nil, fmt.Errorf("image cache: %w", err)
	}
	d, err := openDisk(o.Dir)
	if err != nil {
		return nil, err
	}
	removed, err := d.cleanUp(o.Clock.Now(), func(digest.Digest) bool { return false })
	if err != nil {
		return nil, err
	}
	if len(removed) > 0 {
		o.Logger.Info("removed stale partial downloads", "files", len(removed))
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Cache{
		opts: o, disk: d, client: cl, slots: make(chan struct{}, o.MaxPulls), ctx: ctx, cancel: cancel,
		entries: map[string]*entry{}, loaded: map[digest.Digest]*Image{}, proven: map[digest.Digest]fingerprint{},
		holds: map[digest.Digest]int{}, leases: map[digest.Digest]time.Time{}, touched: map[digest.Digest]time.Time{},
		pulled: make(chan struct{}, 1),
	}, nil
}

// Close cancels the running pulls and waits for them; what they received is kept for a resume. Cancelled pulls send no
// further event.
func (c *Cache) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.pulls.Wait()
	c.client.closeIdle()
}

// Get returns the image a reference means. It never waits for the network: it answers from the cache or starts (or
// joins) a pull in the background, which Get's context does not bound. An image in the cache whose bytes this Cache has
// not proven yet is proven by such a pull, too, which asks no registry for what turns out right.
//
// The files stay for 5 minutes at least, even if nobody references the image; whoever needs them for longer must be
// among References by then, or have them open.
//
// A tag is resolved anew when its last pull ended more than a minute ago; if the registry cannot be reached then, the
// image last seen under the tag is used.
//
// Errors: *PullingError while a pull runs; *PullFailedError after a failure, until its RetryAt, and for a malformed
// reference; ErrClosed.
func (c *Cache) Get(ctx context.Context, ref string) (*Image, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := parseReference(ref)
	if err != nil {
		return nil, c.malformed(ref, err)
	}
	return c.get(ref, r)
}

// GetPinned is Get for the image of that reference whose manifest has digest d, whatever its tag means by now: a
// machine that starts again uses what it booted from. It works without a registry once the image is in the cache.
func (c *Cache) GetPinned(ctx context.Context, ref string, d digest.Digest) (*Image, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := parseReference(ref)
	if err == nil {
		err = d.Validate()
	}
	if err != nil {
		return nil, c.malformed(ref, err)
	}
	return c.get(ref, r.pinned(d))
}

func (c *Cache) malformed(ref string, err error) error {
	return &PullFailedError{Ref: ref, Kind: Invalid, Err: err, RetryAt: c.opts.Clock.Now().Add(c.opts.RetryMax)}
}

func (c *Cache) get(asked string, r reference) (*Image, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	now := c.opts.Clock.Now()
	if r.digest != "" {
		if img, ok := c.readyLocked(r.digest, now); ok {
			return img.withRef(asked), nil
		}
	}
	e := c.entryLocked(r)
	switch {
	case e.waiting != nil:
		e.joinLocked(asked)
	case e.failure != nil && now.Before(e.failure.RetryAt):
		f := *e.failure
		f.Ref = asked
		return nil, &f
	default:
		if e.top != "" && now.Before(e.freshUntil) {
			if img, ok := c.readyLocked(e.top, now); ok {
				return img.withRef(asked), nil
			}
		}
		c.startLocked(e, asked, c.loaded[r.digest] != nil) // all of it is there and only not proven
	}
	return nil, &PullingError{Ref: asked, Done: e.done.Load(), Total: e.total.Load(), Verifying: e.verifying.Load()}
}

// readyLocked returns a complete image whose bytes are proven, and notes that it is used.
func (c *Cache) readyLocked(top digest.Digest, now time.Time) (*Image, bool) {
	img, err := c.cachedLocked(top)
	if err != nil || !c.provenLocked(img) {
		return nil, false
	}
	c.leaseLocked(now, append(img.digests(), top)...)
	c.touchLocked(img.Digest, now)
	return img, true
}

// cachedLocked returns a complete image. Only lengths are looked at for layers.
func (c *Cache) cachedLocked(top digest.Digest) (*Image, error) {
	if img, ok := c.loaded[top]; ok && c.intact(img) {
		return img, nil
	}
	delete(c.loaded, top)
	img, err := c.disk.load(top, c.opts.Platform)
	if err != nil {
		return nil, err
	}
	c.loaded[top] = img
	return img, nil
}

func (c *Cache) intact(img *Image) bool {
	for _, slot := range img.slots() {
		if b := *slot; b != nil && !c.disk.has(b.Digest, b.Size) {
			return false
		}
	}
	return true
}

func (c *Cache) entryLocked(r reference) *entry {
	key := r.String()
	if e := c.entries[key]; e != nil {
		return e
	}
	if len(c.entries) >= maxIdleEntries {
		now := c.opts.Clock.Now()
		for k, e := range c.entries {
			if e.waiting == nil && !now.Before(e.freshUntil) && (e.failure == nil || !now.Before(e.failure.RetryAt)) {
				delete(c.entries, k)
			}
		}
	}
	e := &entry{ref: r}
	c.entries[key] = e
	return e
}

func (e *entry) joinLocked(asked string) {
	for _, name := range e.waiting {
		if name == asked {
			return
		}
	}
	e.waiting = append(e.waiting, asked)
}

// retryAfter is the pause after the n-th failure in a row: 1 s, doubling to the limit, less up to a fifth so that many
// servers do not ask in step.
func (c *Cache) retryAfter(n int, kind Kind) time.Duration {
	d := c.opts.RetryMax
	if shift := n - 1; !kind.Permanent() && shift < 20 {
		d = min(d, retryMin<<shift)
	}
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}
