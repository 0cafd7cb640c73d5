// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package ceph starts a real Ceph cluster for tests: one monitor and one OSD that keeps its data in memory, on loopback,
// from Debian's packages. It exists because what a fake cluster would answer proves nothing about keys, encryption and
// lost monitors. It must never touch a cluster that the host is a part of: it has its own configuration, keys and ports.
package ceph

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Programs are what a cluster needs, with the Debian packages they are in.
var Programs = map[string]string{
	"ceph-mon": "ceph-mon", "ceph-osd": "ceph-osd", "ceph": "ceph-common", "rbd": "ceph-common", "ceph-authtool": "ceph-common",
	"monmaptool": "ceph-common", "qemu-img": "qemu-utils", "cryptsetup": "cryptsetup-bin",
}

// Missing returns the packages that must be installed first.
func Missing() []string {
	var packages []string
	for program, pkg := range Programs {
		if _, err := exec.LookPath(program); err != nil {
			packages = append(packages, pkg)
		}
	}
	return packages
}

// Cluster is a running cluster with a pool "rbd".
type Cluster struct {
	Dir     string
	Monitor string // "127.0.0.1:port"
	User    string // without "client."
	Key     string // base64

	daemons map[string]*exec.Cmd
}

const configuration = `[global]
fsid = %[2]s
mon host = v1:%[3]s/0
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = %[1]s/$name.keyring
log file = %[1]s/$name.log
admin socket =
run dir = %[1]s
pid file =
mon data = %[1]s/mon
osd data = %[1]s/osd
osd objectstore = memstore
memstore device bytes = 2147483648
osd crush update on start = false
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
mon allow pool delete = true
auth allow insecure global id reclaim = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
`

// Start makes a cluster in dir, which must be short (sockets), and waits until it serves. Stop ends it.
func Start(ctx context.Context, dir string) (*Cluster, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir, Monitor: fmt.Sprintf("127.0.0.1:%d", port), User: "tester", daemons: map[string]*exec.Cmd{}}
	fsid := uuid()
	text := fmt.Sprintf(configuration, dir, fsid, c.Monitor)
	if err := os.WriteFile(c.path("ceph.conf"), []byte(text), 0o600); err != nil {
		return nil, err
	}
	if err := c.start(ctx, fsid); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, fsid string) error {
	for _, dir := range []string{"mon", "osd"} {
		if err := os.Mkdir(c.path(dir), 0o700); err != nil {
			return err
		}
	}
	all := []string{"--cap", "mon", "allow *", "--cap", "osd", "allow *"}
	steps := [][]string{
		{"ceph-authtool", "--create-keyring", c.path("mon.keyring"), "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"},
		append([]string{"ceph-authtool", "--create-keyring", c.path("client.admin.keyring"), "--gen-key", "-n", "client.admin"}, all...),
		{"ceph-authtool", c.path("mon.keyring"), "--import-keyring", c.path("client.admin.keyring")},
		{"monmaptool", "--create", "--addv", "a", "v1:" + c.Monitor, "--fsid", fsid, c.path("monmap")},
		{"ceph-mon", "-c", c.path("ceph.conf"), "--mkfs", "-i", "a", "--monmap", c.path("monmap"), "--keyring", c.path("mon.keyring")},
	}
	for _, step := range steps {
		if _, err := c.run(ctx, nil, step...); err != nil {
			return err
		}
	}
	if err := c.StartMonitor(); err != nil {
		return err
	}
	if err := c.startOSD(ctx); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"osd", "pool", "create", "rbd", "8", "8"}, {"osd", "pool", "application", "enable", "rbd", "rbd"},
	} {
		if _, err := c.Ceph(ctx, args...); err != nil {
			return err
		}
	}
	key, err := c.Ceph(ctx, "auth", "get-or-create-key", "client."+c.User, "mon", "profile rbd", "osd", "profile rbd pool=rbd")
	c.Key = strings.TrimSpace(key)
	return err
}

// StartMonitor starts the monitor, the first time or after StopMonitor.
func (c *Cluster) StartMonitor() error {
	return c.daemon("mon", "ceph-mon", "-i", "a")
}

// StopMonitor kills the monitor: the cluster is lost to new clients until StartMonitor.
func (c *Cluster) StopMonitor() error { return c.kill("mon") }

func (c *Cluster) startOSD(ctx context.Context) error {
	id := uuid()
	key, err := c.run(ctx, nil, "ceph-authtool", "--gen-print-key")
	if err != nil {
		return err
	}
	key = strings.TrimSpace(key)
	secret, _ := json.Marshal(map[string]string{"cephx_secret": key})
	if _, err := c.run(ctx, bytes.NewReader(secret), "ceph", "-c", c.path("ceph.conf"), "osd", "new", id, "-i", "-"); err != nil {
		return err
	}
	keyring := fmt.Sprintf("[osd.0]\n\tkey = %s\n", key)
	for _, path := range []string{c.path("osd.0.keyring"), filepath.Join(c.path("osd"), "keyring")} {
		if err := os.WriteFile(path, []byte(keyring), 0o600); err != nil {
			return err
		}
	}
	if _, err := c.run(ctx, nil, "ceph-osd", "-c", c.path("ceph.conf"), "-i", "0", "--mkfs", "--osd-uuid", id); err != nil {
		return err
	}
	if _, err := c.Ceph(ctx, "osd", "crush", "add", "osd.0", "1.0", "root=default", "host=h"); err != nil {
		return err
	}
	return c.daemon("osd", "ceph-osd", "-i", "0")
}

// Ceph runs the ceph command as the cluster's administrator.
func (c *Cluster) Ceph(ctx context.Context, args ...string) (string, error) {
	return c.run(ctx, nil, append([]string{"ceph", "-c", c.path("ceph.conf"), "--connect-timeout", "30"}, args...)...)
}

// RBD runs the rbd command as the cluster's administrator.
func (c *Cluster) RBD(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	return c.run(ctx, stdin, append([]string{"rbd", "-c", c.path("ceph.conf")}, args...)...)
}

// CreateImage makes an image in pool rbd. With a passphrase it is formatted with LUKS2, and bytes is what is left.
func (c *Cluster) CreateImage(ctx context.Context, name string, bytes int64, passphrase string) error {
	const header = 16 << 20 // of LUKS2
	if passphrase != "" {
		bytes += header
	}
	if _, err := c.RBD(ctx, nil, "create", "--size", fmt.Sprint(bytes)+"B", "rbd/"+name); err != nil || passphrase == "" {
		return err
	}
	// By cryptsetup and not by rbd, which has no way to ask for less than seconds of work per passphrase.
	file := c.path("luks." + name)
	defer func() { _ = os.Remove(file) }()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(file, bytes); err != nil {
		return err
	}
	if _, err := c.run(ctx, strings.NewReader(passphrase), "cryptsetup", "luksFormat", "--batch-mode", "--type", "luks2",
		"--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--sector-size", "4096", "--key-file", "-", file); err != nil {
		return err
	}
	if _, err := c.RBD(ctx, nil, "rm", "--no-progress", "rbd/"+name); err != nil {
		return err
	}
	_, err := c.RBD(ctx, nil, "import", "--no-progress", file, "rbd/"+name)
	return err
}

// Raw reads what is really in the cluster's image.
func (c *Cluster) Raw(ctx context.Context, name string) ([]byte, error) {
	path := c.path("export." + name)
	defer func() { _ = os.Remove(path) }()
	if _, err := c.RBD(ctx, nil, "export", "--no-progress", "rbd/"+name, path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// Stop ends all daemons.
func (c *Cluster) Stop() error { return errors.Join(c.kill("osd"), c.kill("mon")) }

func (c *Cluster) path(name string) string { return filepath.Join(c.Dir, name) }

func (c *Cluster) run(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin = stdin
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

func (c *Cluster) daemon(name string, args ...string) error {
	log, err := os.OpenFile(c.path(name+".out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(args[0], append(args[1:], "-c", c.path("ceph.conf"), "--foreground")...) //nolint:noctx // it outlives the caller's context
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = mortal()
	if err := cmd.Start(); err != nil {
		return err
	}
	c.daemons[name] = cmd
	return nil
}

func (c *Cluster) kill(name string) error {
	cmd := c.daemons[name]
	if cmd == nil {
		return nil
	}
	delete(c.daemons, name)
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = cmd.Wait() // says that it was killed
	return nil
}

func freePort(ctx context.Context) (int, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
