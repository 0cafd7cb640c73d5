// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Command demo is "make run": it starts the daemon under one directory, packs a small Linux guest into an OCI image,
// serves that from a registry on loopback, creates a machine from it over the IRI socket and shows how it boots. It
// exists so that a newcomer sees the whole thing work with one command. It must never touch anything outside its
// directory, the guest cache and processes that carry its own mark.
package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

const usage = `usage: demo up|stop|clean

  up      build, serve and boot the demo guest; attach to its console on a terminal
  stop    delete the demo machine, stop daemon and registry
  clean   stop, and remove the demo's directory

The directory is .demo in the current one, or what $CHP_DEMO_DIR says. Where that is too deep for the path of a socket,
it is one below the directory for temporary files.
`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return errors.New("no command given")
	}
	d, err := newDemo()
	if err != nil {
		return err
	}
	defer d.close()
	switch args[0] {
	case "up":
		return d.up(ctx)
	case "stop":
		return d.stop(ctx)
	case "clean":
		if err := d.stop(ctx); err != nil {
			return err
		}
		return os.RemoveAll(d.dir)
	case "registry":
		return serveRegistry(ctx, args[1:])
	}
	fmt.Fprint(os.Stderr, usage)
	return fmt.Errorf("unknown command %q", args[0])
}

// longestRuntimeDir is what the configuration allows for runtimeDir, in bytes.
const longestRuntimeDir = 51

// makeDirectory makes the demo's directory, and takes none that somebody else put there before.
func makeDirectory(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || ok && int(owner.Uid) != os.Getuid() {
		return fmt.Errorf("%s is not a directory of yours; name another in $CHP_DEMO_DIR", dir)
	}
	return nil
}

// directory chooses where everything lies: a Unix socket's path has at most 107 bytes, so that a deep checkout gets
// a directory of its own elsewhere.
func directory() (string, error) {
	if dir := os.Getenv("CHP_DEMO_DIR"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := filepath.Abs(".demo")
	if err != nil {
		return "", err
	}
	if len(dir)+len("/run") > longestRuntimeDir {
		name := fmt.Sprintf("chp-demo-%d-%08x", os.Getuid(), crc32.ChecksumIEEE([]byte(dir)))
		return filepath.Join(os.TempDir(), name), nil
	}
	return dir, nil
}
