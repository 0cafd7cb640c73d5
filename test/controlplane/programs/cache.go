// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// The programs, by the names of their files.
const (
	Etcd              = "etcd"
	KubeAPIServer     = "kube-apiserver"
	IronCoreAPIServer = "ironcore-apiserver"
	ControllerManager = "ironcore-controller-manager"
	MachinePoollet    = "machinepoollet"
	IRICtlMachine     = "irictl-machine"
)

const (
	// upstream is the directory, beside the one of this package, of the module that pins what is built.
	upstream = "upstream"
	// unusedFor is how long programs of other versions are kept after somebody last used them.
	unusedFor = 30 * 24 * time.Hour
	// lockPoll is how often a process looks whether another one has finished to build.
	lockPoll = 200 * time.Millisecond
)

// Set is a complete set of built programs.
type Set struct{ dir string }

// Path returns the file of a program.
func (s Set) Path(program string) string { return filepath.Join(s.dir, program) }

// Manifest returns a file of ironcore's deployment, by its path below the folder config of ironcore's source.
func (s Set) Manifest(name string) string {
	return filepath.Join(s.dir, manifestDir, filepath.FromSlash(name))
}

// complete reports whether everything is there.
func (s Set) complete() bool {
	for _, p := range all() {
		if info, err := os.Stat(s.Path(p.name)); err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	_, err := os.Stat(filepath.Join(s.dir, manifestDir))
	return err == nil
}

// DefaultCacheDir is $CHP_CONTROLPLANE_CACHE, else a directory below the user's cache directory, else one below the
// temporary directory.
func DefaultCacheDir() string {
	if dir := os.Getenv("CHP_CONTROLPLANE_CACHE"); dir != "" {
		return dir
	}
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	return filepath.Join(base, "cloud-hypervisor-provider", "controlplane")
}

// Options configures Cached and Build.
type Options struct {
	// CacheDir keeps what is built; created if absent. Default: DefaultCacheDir.
	CacheDir string
	// Say tells in one line what happens; default: silent.
	Say func(line string)
}

// builder is one attempt to come by the programs.
type builder struct {
	module string // directory of the module that pins versions
	cache  string
	key    string
	say    func(string)
}

func newBuilder(o Options) (*builder, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return nil, errors.New("find the source of this package: built with -trimpath")
	}
	b := &builder{
		module: filepath.Join(filepath.Dir(filepath.Dir(file)), upstream), cache: o.CacheDir, say: o.Say,
	}
	if b.cache == "" {
		b.cache = DefaultCacheDir()
	}
	if b.say == nil {
		b.say = func(string) {}
	}
	hash := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		raw, err := os.ReadFile(filepath.Join(b.module, name))
		if err != nil {
			return nil, fmt.Errorf("read versions of the programs: %w", err)
		}
		_, _ = fmt.Fprintf(hash, "%s %d\n%s", name, len(raw), raw)
	}
	_, _ = fmt.Fprintf(hash, "%s %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, p := range all() {
		_, _ = fmt.Fprintf(hash, "\n%s %s", p.name, p.from)
	}
	_, _ = fmt.Fprintf(hash, "\n%q", manifestParts())
	b.key = hex.EncodeToString(hash.Sum(nil))[:16]
	return b, nil
}

func (b *builder) set() Set { return Set{dir: filepath.Join(b.cache, b.key)} }

// Cached returns the programs if they have been built before.
func Cached(o Options) (Set, bool) {
	b, err := newBuilder(o)
	if err != nil {
		return Set{}, false
	}
	s := b.set()
	if !s.complete() {
		return Set{}, false
	}
	b.touch()
	return s, true
}

// Build returns the programs, after building those that are missing. It may take ten minutes of two processors. An
// error says which program could not be built, with the compiler's output.
func Build(ctx context.Context, o Options) (Set, error) {
	b, err := newBuilder(o)
	if err != nil {
		return Set{}, err
	}
	s := b.set()
	if s.complete() {
		b.touch()
		return s, nil
	}
	if err := os.MkdirAll(s.dir, 0o750); err != nil {
		return Set{}, fmt.Errorf("create the cache of programs: %w", err)
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return Set{}, err
	}
	defer unlock()
	if err := b.buildAll(ctx); err != nil {
		return Set{}, err
	}
	b.touch()
	b.prune()
	return s, nil
}

// lock makes this process the only one that builds.
func (b *builder) lock(ctx context.Context) (func(), error) {
	f, err := os.OpenFile(filepath.Join(b.cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the cache: %w", err)
	}
	for waited := false; ; waited = true {
		ok, err := tryLock(f)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock the cache: %w", err), f.Close())
		}
		if ok {
			return func() { _ = f.Close() }, nil
		}
		if !waited {
			b.say("another process builds the control plane; waiting for it")
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for the process that builds: %w", ctx.Err()), f.Close())
		case <-time.After(lockPoll):
		}
	}
}

// touch notes that these programs are in use.
func (b *builder) touch() {
	now := time.Now()
	_ = os.Chtimes(b.set().dir, now, now)
}

// prune removes programs of versions that nobody uses any more.
func (b *builder) prune() {
	entries, _ := os.ReadDir(b.cache)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() || e.Name() == b.key || len(e.Name()) != len(b.key) ||
			strings.Trim(e.Name(), "0123456789abcdef") != "" || time.Since(info.ModTime()) < unusedFor {
			continue
		}
		_ = os.RemoveAll(filepath.Join(b.cache, e.Name()))
	}
}
