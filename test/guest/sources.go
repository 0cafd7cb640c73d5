// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/guest/debian"
)

// initPackage is where the guest's process 1 lives.
const initPackage = "github.com/ironcore-dev/cloud-hypervisor-provider/test/guest/init"

// kernelDependency finds the versioned kernel package in the meta package's Depends field.
var kernelDependency = regexp.MustCompile(`linux-image-[0-9][a-z0-9.+-]*`)

func findKernel(ctx context.Context, o Options, cache *debian.Cache) (kernelTree, error) {
	if o.KernelTree != "" {
		k, err := kernelIn(o.KernelTree)
		if err != nil {
			return k, err
		}
		data, err := os.ReadFile(k.image)
		k.identity = fmt.Sprintf("%s %x", k.release, sha256.Sum256(data))
		return k, err
	}
	meta, err := cache.Tree(ctx, "linux-image-cloud-"+o.Arch)
	if err != nil {
		return kernelTree{}, err
	}
	depends, err := cache.Depends(ctx, meta)
	if err != nil {
		return kernelTree{}, err
	}
	name := kernelDependency.FindString(depends)
	if name == "" {
		return kernelTree{}, fmt.Errorf("package %s names no kernel package in %q", meta.Name, depends)
	}
	pkg, err := cache.Tree(ctx, name)
	if err != nil {
		return kernelTree{}, err
	}
	k, err := kernelIn(pkg.Tree)
	k.identity = pkg.Name + " " + pkg.Version
	return k, err
}

// kernelIn finds kernel and modules in an unpacked package. Newer packages have them below usr/lib.
func kernelIn(tree string) (kernelTree, error) {
	images, err := filepath.Glob(filepath.Join(tree, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return kernelTree{}, fmt.Errorf("%s has %d kernels in boot/, want one", tree, len(images))
	}
	release := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	for _, lib := range []string{"lib", "usr/lib"} {
		dir := filepath.Join(tree, lib, "modules", release)
		if _, err := os.Stat(dir); err == nil {
			return kernelTree{image: images[0], modules: dir, release: release}, nil
		}
	}
	return kernelTree{}, fmt.Errorf("%s has no modules of kernel %s", tree, release)
}

func findBusybox(ctx context.Context, o Options, cache *debian.Cache) ([]byte, error) {
	const hostPath, packaged = "/bin/busybox", "busybox-static"
	path := o.Busybox
	if path == "" && o.Arch == runtime.GOARCH {
		if data, err := os.ReadFile(hostPath); err == nil && isStatic(data, o.Arch) {
			return data, nil
		}
	}
	if path == "" {
		pkg, err := cache.Tree(ctx, packaged)
		if err != nil {
			return nil, err
		}
		path = filepath.Join(pkg.Tree, "bin/busybox")
		if _, err := os.Stat(path); err != nil {
			path = filepath.Join(pkg.Tree, "usr/bin/busybox")
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read busybox: %w", err)
	}
	if !isStatic(data, o.Arch) {
		return nil, fmt.Errorf("%s is not a static busybox for %s; run: apt-get install %s", path, o.Arch, packaged)
	}
	return data, nil
}

// isStatic tells whether a program runs on the architecture without any library.
func isStatic(program []byte, arch string) bool {
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil || f.Machine != machines[arch] {
		return false
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	return true
}

func findInit(ctx context.Context, dir string) (string, error) {
	if dir != "" {
		return filepath.Abs(dir)
	}
	out, err := goCommand(ctx, "", nil, "list", "-f", "{{.Dir}}", initPackage)
	if err != nil {
		return "", fmt.Errorf("find the sources of process 1 (run inside the module or give InitDir): %w", err)
	}
	return strings.TrimSpace(out), nil
}

// goCommand runs the go command in dir with more environment.
func goCommand(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("the go command is not on this host; run: apt-get install golang-go, or see go.dev/dl")
	}
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
