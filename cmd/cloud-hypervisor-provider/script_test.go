// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/iriserver"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"cloud-hypervisor-provider": func() { os.Exit(run(os.Args[1:])) },
	})
}

func TestTheCommandLineAnswersAsWritten(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
		// Sockets are made below the runtime directory, whose path may have 51 bytes.
		Setup: func(env *testscript.Env) error {
			run, err := os.MkdirTemp("/tmp", "chp-script-")
			if err != nil {
				return err
			}
			env.Defer(func() { _ = os.RemoveAll(run) })
			env.Setenv("RUN", run)
			return nil
		},
	})
}

// exits runs a program and wants one exit code: exits CODE PROGRAM ARG...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	switch {
	case err == nil && want == 0:
	case errors.As(err, &exit) && exit.ExitCode() == want:
	default:
		ts.Fatalf("%v ended with %v, want exit code %d", args[1:], err, want)
	}
}

func TestTheConsoleOfAMachineThatDoesNotExistIsToldSo(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "chp-console-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	hub, err := console.New(console.Options{LogMaxBytes: 1 << 20, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer hub.Close()
	socket := filepath.Join(dir, consoleSocket)
	listener, err := iriserver.Listen(socket, "")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- console.Serve(t.Context(), listener, hub, log) }()
	root := newRoot()
	root.SetArgs([]string{"console", "--runtime-dir", dir, "nobody"})
	root.SetOut(io.Discard)
	err = root.ExecuteContext(t.Context())
	if want := "attach to console: machine nobody has no open console; it does not exist or does not run"; err == nil || err.Error() != want {
		t.Errorf("error: %v, want %s", err, want)
	}
	_ = listener.Close()
	<-ended
}
