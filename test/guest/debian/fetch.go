// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// DownloadTimeout bounds one apt-get or dpkg-deb call when Options gives no other value.
const DownloadTimeout = 10 * time.Minute

// Options configures a Cache.
type Options struct {
	// Dir holds downloads and unpacked trees; created if absent. Required.
	Dir string
	// Arch is a Debian architecture name ("amd64", "arm64"). Required. One that is not the host's own is fetched with
	// a private package index below Dir, so the host's apt configuration stays as it is.
	Arch string
	// Timeout bounds each external command; default DownloadTimeout.
	Timeout time.Duration
	// Logger tells what is downloaded; default: silent.
	Logger *slog.Logger
}

// Cache is a directory of unpacked Debian packages of one architecture. It may be shared by processes.
type Cache struct {
	dir     string
	arch    string
	timeout time.Duration
	log     *slog.Logger
}

// MissingError says which package could not be had, why, and the command that helps.
type MissingError struct {
	Package string
	Reason  string
	// Command is a shell command for the person to run.
	Command string
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("Debian package %s cannot be fetched: %s; run: %s", e.Package, e.Reason, e.Command)
}

// NewCache validates the options and creates the directory.
func NewCache(o Options) (*Cache, error) {
	if o.Dir == "" {
		return nil, errors.New("debian cache: no directory given")
	}
	if !packageName.MatchString(o.Arch) {
		return nil, fmt.Errorf("debian cache: %q is not an architecture name", o.Arch)
	}
	if o.Timeout == 0 {
		o.Timeout = DownloadTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	// apt-get runs in a directory below, so the path has to stay true there.
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("debian cache: %w", err)
	}
	for _, sub := range []string{"debs", "trees"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o750); err != nil {
			return nil, fmt.Errorf("create debian cache: %w", err)
		}
	}
	return &Cache{dir: dir, arch: o.Arch, timeout: o.Timeout, log: o.Logger}, nil
}

var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)

// Package is one unpacked package.
type Package struct {
	Name    string
	Version string
	// Tree is the directory that holds the package's files, as they would lie below /.
	Tree string
}

// Tree returns the package, downloading and unpacking it when the cache has none. A cached package is not replaced by
// a newer one: remove the directory for that. Calls by several processes are safe and download once.
func (c *Cache) Tree(ctx context.Context, name string) (Package, error) {
	if !packageName.MatchString(name) {
		return Package{}, fmt.Errorf("fetch debian package: %q is not a package name", name)
	}
	unlock, err := Lock(ctx, filepath.Join(c.dir, "lock"))
	if err != nil {
		return Package{}, fmt.Errorf("lock debian cache: %w", err)
	}
	defer unlock()
	if p, ok := c.cached(name); ok {
		return p, nil
	}
	deb, err := c.download(ctx, name)
	if err != nil {
		return Package{}, err
	}
	return c.unpack(ctx, name, deb)
}

// Depends returns the Depends field of a package that Tree has returned.
func (c *Cache) Depends(ctx context.Context, p Package) (string, error) {
	out, err := c.run(ctx, "", "dpkg-deb", "-f", c.debPath(filepath.Base(p.Tree)), "Depends")
	if err != nil {
		return "", fmt.Errorf("read dependencies of %s: %w", p.Name, err)
	}
	return strings.TrimSpace(out), nil
}

// cached finds an unpacked tree by name; the file name form name_version_arch is apt's.
func (c *Cache) cached(name string) (Package, bool) {
	trees, err := filepath.Glob(filepath.Join(c.dir, "trees", name+"_*_"+c.arch))
	all, err2 := filepath.Glob(filepath.Join(c.dir, "trees", name+"_*_all"))
	trees = append(trees, all...)
	if err != nil || err2 != nil || len(trees) == 0 {
		return Package{}, false
	}
	tree := trees[len(trees)-1]
	return Package{Name: name, Version: versionOf(filepath.Base(tree)), Tree: tree}, true
}

func versionOf(fileName string) string {
	parts := strings.Split(fileName, "_")
	if len(parts) != 3 {
		return ""
	}
	// apt writes the colon of an epoch as %3a in file names.
	return strings.ReplaceAll(parts[1], "%3a", ":")
}

func (c *Cache) debPath(base string) string { return filepath.Join(c.dir, "debs", base+".deb") }

// download leaves the package file in debs and returns its name without the ending.
func (c *Cache) download(ctx context.Context, name string) (string, error) {
	c.log.Info("downloading Debian package", "package", name, "arch", c.arch)
	start := time.Now()
	tmp, err := c.tempDir()
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	options, err := c.aptOptions(ctx)
	if err != nil {
		return "", &MissingError{Package: name, Reason: err.Error(), Command: "apt-get update"}
	}
	if _, err := c.run(ctx, tmp, "apt-get", append(options, "download", name)...); err != nil {
		return "", c.explain(name, err)
	}
	debs, err := filepath.Glob(filepath.Join(tmp, name+"_*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("download %s: apt-get left %d files", name, len(debs))
	}
	base := strings.TrimSuffix(filepath.Base(debs[0]), ".deb")
	if err := os.Rename(debs[0], c.debPath(base)); err != nil {
		return "", fmt.Errorf("keep %s: %w", name, err)
	}
	c.log.Info("downloaded Debian package", "package", name, "file", base, "took", time.Since(start).Round(time.Millisecond))
	return base, nil
}

func (c *Cache) unpack(ctx context.Context, name, base string) (Package, error) {
	tmp, err := c.tempDir()
	if err != nil {
		return Package{}, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if _, err := c.run(ctx, "", "dpkg-deb", "-x", c.debPath(base), tmp); err != nil {
		return Package{}, fmt.Errorf("unpack %s: %w", name, err)
	}
	tree := filepath.Join(c.dir, "trees", base)
	if err := os.Rename(tmp, tree); err != nil {
		return Package{}, fmt.Errorf("keep %s: %w", name, err)
	}
	return Package{Name: name, Version: versionOf(base), Tree: tree}, nil
}

// tempDir makes a directory for unfinished work. What a killed run has left goes first: the lock is held.
func (c *Cache) tempDir() (string, error) {
	old, err := filepath.Glob(filepath.Join(c.dir, "tmp-*"))
	if err != nil {
		return "", err
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			return "", fmt.Errorf("clean debian cache: %w", err)
		}
	}
	tmp, err := os.MkdirTemp(c.dir, "tmp-")
	if err != nil {
		return "", fmt.Errorf("create work directory: %w", err)
	}
	return tmp, nil
}

func (c *Cache) explain(name string, err error) error {
	var notFound *exec.Error
	switch {
	case errors.As(err, &notFound):
		return &MissingError{
			Package: name, Reason: notFound.Name + " is not on this host (it has to be Debian or a relative)",
			Command: "see the package's page at packages.debian.org",
		}
	case strings.Contains(err.Error(), "Unable to locate package"), strings.Contains(err.Error(), "Can't find a source"):
		return &MissingError{Package: name, Reason: "it is not in the package index of this host", Command: "apt-get update"}
	default:
		return &MissingError{Package: name, Reason: err.Error(), Command: "apt-get update && apt-get download " + name}
	}
}

// run executes a command with a deadline and returns its standard output; the error carries the last lines of its
// standard error.
func (c *Cache) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	// Messages are matched, so they must not be translated.
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", fmt.Errorf("run %s: %w: %s", name, err, lastLines(stderr.String(), 3))
	}
	return stdout.String(), nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "; ")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
