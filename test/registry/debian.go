// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest"
	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest/debian"
)

const (
	debianPackage = "docker-registry"

	// startTimeout is how long the server may take to listen, on a busy machine.
	startTimeout = time.Minute
	// killDelay is how long it may take to end after it was asked to.
	killDelay = 5 * time.Second
)

// DebianOptions configures StartDebian.
type DebianOptions struct {
	// StorageDir keeps what is pushed. Required.
	StorageDir string
	// CacheDir holds the unpacked Debian package when docker-registry is not on PATH; default guest.DefaultCacheDir.
	CacheDir string
	// Logger tells what is started; default: silent.
	Logger *slog.Logger
}

// Debian is a running docker-registry process.
type Debian struct {
	host   string
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // valid once exited is closed
}

// listening is the server's log line that tells the port the kernel chose.
var listening = regexp.MustCompile(`listening on (127\.0\.0\.1:\d+)`)

const configTemplate = `version: 0.1
log:
  level: info
storage:
  filesystem:
    rootdirectory: %q
  delete:
    enabled: true
http:
  addr: 127.0.0.1:0
  headers:
    X-Content-Type-Options: [nosniff]
`

// StartDebian runs docker-registry, as Debian packages it, on a free loopback port. Nothing is installed. It ends with
// Close, with ctx, or with this process.
func StartDebian(ctx context.Context, o DebianOptions) (*Debian, error) {
	if o.StorageDir == "" {
		return nil, errors.New("start docker-registry: no storage directory given")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	binary, err := debianBinary(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("start docker-registry: %w", err)
	}
	storage, err := filepath.Abs(o.StorageDir)
	if err != nil {
		return nil, fmt.Errorf("start docker-registry: %w", err)
	}
	if err := os.MkdirAll(storage, 0o750); err != nil {
		return nil, fmt.Errorf("start docker-registry: %w", err)
	}
	config := filepath.Join(storage, "config.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, configTemplate, filepath.Join(storage, "data")), 0o640); err != nil {
		return nil, fmt.Errorf("start docker-registry: %w", err)
	}
	d, err := launch(ctx, binary, config)
	if err != nil {
		return nil, fmt.Errorf("start docker-registry: %w", err)
	}
	o.Logger.Info("docker-registry is listening", "address", d.host, "binary", binary)
	return d, nil
}

func debianBinary(ctx context.Context, o DebianOptions) (string, error) {
	if path, err := exec.LookPath(debianPackage); err == nil {
		return path, nil
	}
	if o.CacheDir == "" {
		o.CacheDir = guest.DefaultCacheDir()
	}
	cache, err := debian.NewCache(debian.Options{
		Dir: filepath.Join(o.CacheDir, "packages"), Arch: runtime.GOARCH, Logger: o.Logger,
	})
	if err != nil {
		return "", err
	}
	pkg, err := cache.Tree(ctx, debianPackage)
	if err != nil {
		return "", err
	}
	return filepath.Join(pkg.Tree, "usr/bin", debianPackage), nil
}

func launch(ctx context.Context, binary, config string) (*Debian, error) {
	cmd := exec.CommandContext(ctx, binary, "serve", config)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = killDelay
	cmd.SysProcAttr = diesWithParent()
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = write, write
	if err := errors.Join(cmd.Start(), write.Close()); err != nil {
		read.Close()
		return nil, err
	}
	d := &Debian{cmd: cmd, exited: make(chan struct{})}
	hosts := make(chan string, 1)
	var tail string
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		defer read.Close()
		tail = drain(read, hosts)
	}()
	go func() {
		d.err = cmd.Wait()
		close(d.exited)
	}()
	select {
	case d.host = <-hosts:
		return d, nil
	case <-d.exited:
		<-drained
		return nil, fmt.Errorf("it ended: %w: %s", d.err, tail)
	case <-time.After(startTimeout):
		return nil, errors.Join(errors.New("it does not listen"), d.Close())
	}
}

// drain reads the log so that the server never blocks on it, and returns the last line.
func drain(r io.Reader, hosts chan<- string) (tail string) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			tail = line
		}
		if m := listening.FindStringSubmatch(line); m != nil {
			select {
			case hosts <- m[1]:
			default:
			}
		}
		if err != nil {
			return tail
		}
	}
}

// Host is HOST:PORT, as it stands at the front of an image reference.
func (d *Debian) Host() string { return d.host }

// Close ends the server and waits for it. What was pushed stays in the storage directory.
func (d *Debian) Close() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.exited:
	case <-time.After(killDelay):
		_ = d.cmd.Process.Kill()
		<-d.exited
	}
	var exit *exec.ExitError
	if d.err != nil && !errors.As(d.err, &exit) {
		return fmt.Errorf("stop docker-registry: %w", d.err)
	}
	return nil
}
