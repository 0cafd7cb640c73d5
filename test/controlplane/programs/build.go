// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	ironcore   = "github.com/ironcore-dev/ironcore"
	kubernetes = "k8s.io/kubernetes"
	// manifestDir is where ironcore's manifests lie in the cache.
	manifestDir = "manifests"
)

// manifestParts are the folders of ironcore's deployment that are kept.
func manifestParts() []string {
	return []string{"apiserver", "controller", "machinepoollet-broker", "namespaces"}
}

// program is one to be built.
type program struct {
	name string
	from string // its main package
}

// all lists the programs in the order of building: first what most of the others share.
func all() []program {
	return []program{
		{MachinePoollet, ironcore + "/poollet/machinepoollet/cmd/machinepoollet"},
		{IRICtlMachine, ironcore + "/irictl-machine/cmd/irictl-machine"},
		{IronCoreAPIServer, ironcore + "/cmd/ironcore-apiserver"},
		{ControllerManager, ironcore + "/cmd/ironcore-controller-manager"},
		{Etcd, "go.etcd.io/etcd/server/v3"},
		{KubeAPIServer, kubernetes + "/cmd/kube-apiserver"},
	}
}

// buildAll builds what is missing. Each program appears whole or not at all.
func (b *builder) buildAll(ctx context.Context) error {
	dir := b.set().dir
	version, err := b.command(ctx, "list", "-m", "-f", "{{.Version}}", kubernetes)
	if err != nil {
		return fmt.Errorf("find the version of Kubernetes: %w", err)
	}
	for _, p := range all() {
		final := filepath.Join(dir, p.name)
		if _, err := os.Stat(final); err == nil {
			continue
		}
		began := time.Now()
		b.say("building " + p.name + " from " + p.from)
		partial := final + ".partial"
		if _, err := b.command(ctx, "build", "-ldflags", linkerFlags(version), "-o", partial, p.from); err != nil {
			return fmt.Errorf("build %s: %w", p.name, err)
		}
		if err := os.Rename(partial, final); err != nil {
			return fmt.Errorf("keep %s: %w", p.name, err)
		}
		b.say(fmt.Sprintf("built %s in %v", p.name, time.Since(began).Round(time.Second)))
	}
	return b.keepManifests(ctx)
}

// linkerFlags leave out what only debuggers read, and tell Kubernetes its version, which it derives features from.
func linkerFlags(version string) string {
	numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	const in = " -X k8s.io/component-base/version."
	return "-s -w" + in + "gitVersion=" + version + in + "gitMajor=" + numbers[0] + in + "gitMinor=" + numbers[1]
}

// command runs the go command in the module that pins versions and returns what it prints.
func (b *builder) command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{args[0], "-C", b.module}, args[1:]...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, complaints.Bytes())
	}
	return strings.TrimSpace(out.String()), nil
}

// keepManifests copies ironcore's roles and bindings beside the programs, so that tests grant what a release grants.
func (b *builder) keepManifests(ctx context.Context) error {
	source, err := b.command(ctx, "list", "-m", "-f", "{{.Dir}}", ironcore)
	if err == nil && source == "" {
		err = errors.New("the module is not in the module cache")
	}
	if err != nil {
		return fmt.Errorf("find ironcore's manifests: %w", err)
	}
	final := filepath.Join(b.set().dir, manifestDir)
	partial := final + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return fmt.Errorf("keep ironcore's manifests: %w", err)
	}
	for _, part := range manifestParts() {
		if err := copyYAML(filepath.Join(source, "config", part), filepath.Join(partial, part)); err != nil {
			return fmt.Errorf("keep ironcore's manifests: %w", err)
		}
	}
	if err := os.RemoveAll(final); err != nil {
		return fmt.Errorf("keep ironcore's manifests: %w", err)
	}
	return os.Rename(partial, final)
}

func copyYAML(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
			return err
		}
		return os.WriteFile(target, raw, 0o640)
	})
}
