// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

// restarted is the hub of a daemon that was just started: the guest runs, and its console is not open yet.
type restarted struct {
	*testing.T
	hub     *Hub
	runs    atomic.Bool // the machine is expected
	waiting chan struct{}
}

func restart(t *testing.T, patience time.Duration) *restarted {
	r := &restarted{T: t, waiting: make(chan struct{}, 1)}
	r.runs.Store(true)
	r.hub = newHub(t, Options{openPatience: patience, Expected: func(id string) bool {
		poke(r.waiting)
		return id == guestID && r.runs.Load()
	}})
	return r
}

// join attaches in the background and returns once it waits.
func (r *restarted) join(ctx context.Context) <-chan error {
	joined := make(chan error, 1)
	go func() {
		c, err := r.hub.join(ctx, guestID, AttachOptions{}, nil)
		if err == nil {
			c.leave()
		}
		joined <- err
	}()
	select {
	case <-r.waiting:
	case <-time.After(patience):
		r.Fatal("nobody asks whether the machine is expected")
	}
	return joined
}

func (r *restarted) result(joined <-chan error) error {
	r.Helper()
	select {
	case err := <-joined:
		return err
	case <-time.After(patience):
		r.Fatal("it waits for ever")
		return nil
	}
}

// A daemon that was restarted said of a running machine that it "has no open console" until it had taken it up.
func TestAClientWaitsForTheConsoleOfARunningMachine(t *testing.T) {
	r := restart(t, patience)
	joined := r.join(t.Context())
	newGuest(t).start().open(r.hub, filepath.Join(t.TempDir(), "console.log"))
	if err := r.result(joined); err != nil {
		t.Error(err)
	}
}

func TestWhatIsTypedAtOnceAfterAWaitReachesTheGuest(t *testing.T) {
	r := restart(t, patience)
	socket := filepath.Join(socketDir(t), "console.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, r.hub, slog.New(slog.DiscardHandler)) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	g := newGuest(t)
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		<-r.waiting
		g.start().open(r.hub, filepath.Join(t.TempDir(), "console.log"))
	}()
	conn, err := Dial(ctx, socket, guestID, AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	<-opened
	if _, err := io.WriteString(conn, "uname -a\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the guest hears it", func() bool { return g.input() == "uname -a\n" })
}

func TestAWaitForAConsoleEnds(t *testing.T) {
	t.Run("after its time", func(t *testing.T) {
		r := restart(t, 20*time.Millisecond)
		wantKind(t, r.result(r.join(t.Context())), machine.NotFound)
	})
	t.Run("when the machine is not expected any more", func(t *testing.T) {
		r := restart(t, time.Hour)
		joined := r.join(t.Context())
		r.runs.Store(false)
		wantKind(t, r.result(joined), machine.NotFound)
	})
	t.Run("when the hub is closed", func(t *testing.T) {
		r := restart(t, time.Hour)
		joined := r.join(t.Context())
		r.hub.Close()
		wantKind(t, r.result(joined), machine.NotFound)
	})
	t.Run("when the daemon stops", func(t *testing.T) {
		r := restart(t, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		joined := r.join(ctx)
		cancel()
		if err := r.result(joined); !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
	t.Run("at once for a machine that is not expected", func(t *testing.T) {
		r := restart(t, time.Hour)
		r.runs.Store(false)
		wantKind(t, r.result(r.join(t.Context())), machine.NotFound)
	})
}
