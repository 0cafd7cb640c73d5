// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package web_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/iriserver"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/web"
)

type versions struct {
	iri.UnimplementedMachineRuntimeServer
}

func (versions) Version(context.Context, *iri.VersionRequest) (*iri.VersionResponse, error) {
	return &iri.VersionResponse{RuntimeName: "test"}, nil
}

// iriClient serves the IRI in this process, as the daemon does, and connects to it.
func iriClient(t *testing.T) iri.MachineRuntimeClient {
	t.Helper()
	dir, err := os.MkdirTemp("", "web")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	address := filepath.Join(dir, "s")
	listener, err := iriserver.Listen(address, "")
	if err != nil {
		t.Fatal(err)
	}
	server := iriserver.NewGRPC(versions{}, iriserver.ServeOptions{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("unix:"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return iri.NewMachineRuntimeClient(conn)
}

// counted counts the connections that a server holds.
type counted struct {
	net.Listener
	open, most atomic.Int64
}

type countedConn struct {
	net.Conn
	from   *counted
	closed atomic.Bool
}

func (l *counted) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n := l.open.Add(1)
	for most := l.most.Load(); n > most && !l.most.CompareAndSwap(most, n); most = l.most.Load() {
	}
	return &countedConn{Conn: conn, from: l}, nil
}

func (c *countedConn) Close() error {
	if !c.closed.Swap(true) {
		c.from.open.Add(-1)
	}
	return c.Conn.Close()
}

// floodSize is 10,000 connections, or as many as this process may have open.
func floodSize(t *testing.T) int {
	t.Helper()
	const want, spare = 10_000, 500
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if int(limit.Cur) < want+spare { // Go has raised the limit to what is allowed already
		t.Logf("only %d files may be open here: the flood has %d connections instead of %d", limit.Cur, int(limit.Cur)-spare, want)
		return int(limit.Cur) - spare
	}
	return want
}

func TestAFloodOfConnectionsStarvesNeitherTheIRISocketNorThoseWhoAsk(t *testing.T) {
	client := iriClient(t)
	server := &counted{}
	address := serve(t, web.Options{
		Handler: ok,
		Listen: func(ctx context.Context, address string) (l net.Listener, err error) {
			server.Listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address)
			return server, err
		},
	})
	call := func() time.Duration {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		start := time.Now()
		if _, err := client.Version(ctx, &iri.VersionRequest{}); err != nil {
			t.Errorf("call during the flood: %v", err)
		}
		return time.Since(start)
	}
	call() // connects
	flood := make(chan int)
	var held []net.Conn
	go func() { // each stays open as long as the server lets it, half of them with the beginning of a request
		defer close(flood)
		for i := range floodSize(t) {
			conn, err := net.DialTimeout("tcp", address, patience)
			if err != nil {
				t.Errorf("connection %d: %v", i, err)
				return
			}
			if i%2 == 0 {
				_, err = conn.Write([]byte("GET / HTTP/1.1\r\nX: "))
			}
			if err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("connection %d: %v", i, err)
			}
			held = append(held, conn)
		}
	}()
	var took []time.Duration
	for under := true; under; {
		took = append(took, call())
		select {
		case <-flood:
			under = false
		default:
		}
	}
	for range 20 { // with all of the flood there
		took = append(took, call())
		if err := ask(address); err != nil {
			t.Errorf("somebody who asks: %v", err)
		}
	}
	slices.Sort(took)
	t.Logf("%d connections, at most %d held; %d calls, p50 %s, p99 %s", len(held), server.most.Load(), len(took),
		took[len(took)/2], took[len(took)*99/100])
	if most := server.most.Load(); most > web.DefaultMaxConnections+2 {
		t.Errorf("the server held %d connections", most)
	}
	if p99 := took[len(took)*99/100]; p99 > time.Second {
		t.Errorf("calls take up to %s", p99)
	}
	for _, conn := range held {
		_ = conn.Close()
	}
}
