// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package iriserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthapi "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

// SocketMode is the mode of the IRI socket: secrets of volumes travel over it in clear.
const SocketMode = 0o660

// MaxRequestBytes bounds a request; an Ignition payload may have 16 MiB.
const MaxRequestBytes = 32 << 20

// stopPatience is how long calls under way may take when the server stops.
const stopPatience = 10 * time.Second

// ServeOptions is how a server is reached.
type ServeOptions struct {
	Address string        // path of the socket
	Group   string        // name or number of the group that owns it; "" leaves it
	Timeout time.Duration // of calls that come without a deadline; default 30s
	Metrics *grpcprom.ServerMetrics
	Logger  *slog.Logger
	Ready   func() // called once the socket is open; may be nil
}

// Serve opens the socket and answers until ctx ends; then calls under way get 10 s to finish.
func Serve(ctx context.Context, runtime iri.MachineRuntimeServer, o ServeOptions) error {
	listener, err := Listen(o.Address, o.Group)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(o.Address) }()
	server := NewGRPC(runtime, o)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		hard := time.AfterFunc(stopPatience, server.Stop)
		defer hard.Stop()
		server.GracefulStop()
	}()
	if o.Ready != nil {
		o.Ready()
	}
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve the IRI: %w", err)
	}
	<-stopped
	return nil
}

// NewGRPC makes the gRPC server with health, reflection, recovery, deadlines and metrics.
func NewGRPC(runtime iri.MachineRuntimeServer, o ServeOptions) *grpc.Server {
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var chain []grpc.UnaryServerInterceptor
	if o.Metrics != nil {
		chain = append(chain, o.Metrics.UnaryServerInterceptor())
	}
	chain = append(chain,
		logFailures(o.Logger),
		recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(func(_ context.Context, p any) error {
			o.Logger.Error("panic in a call", "panic", p, "stack", string(debug.Stack()))
			return status.Error(codes.Internal, "internal error; see the log")
		})),
		deadline(o.Timeout), convertErrors)
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(chain...), grpc.MaxRecvMsgSize(MaxRequestBytes), grpc.ForceServerCodecV2(newCodec()))
	iri.RegisterMachineRuntimeServer(server, runtime)
	alive := health.NewServer()
	alive.SetServingStatus("", healthapi.HealthCheckResponse_SERVING)
	alive.SetServingStatus(iri.MachineRuntime_ServiceDesc.ServiceName, healthapi.HealthCheckResponse_SERVING)
	healthapi.RegisterHealthServer(server, alive)
	reflection.Register(server)
	if o.Metrics != nil {
		o.Metrics.InitializeMetrics(server)
	}
	return server
}

func convertErrors(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if why := malformed(req); why != "" {
		return nil, status.Error(codes.InvalidArgument, "malformed request: "+why)
	}
	answer, err := next(ctx, req)
	return answer, toStatus(err)
}

func deadline(most time.Duration) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if _, ok := ctx.Deadline(); !ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, most)
			defer cancel()
		}
		return next(ctx, req)
	}
}

func logFailures(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		answer, err := next(ctx, req)
		if code := status.Code(err); code != codes.OK && code != codes.NotFound && code != codes.Unimplemented {
			log.Warn("call failed", "call", info.FullMethod, "code", code.String(), "error", err)
		}
		return answer, err
	}
}

// Listen opens a Unix socket with mode 0660 and the given group. It is made under another name and renamed into
// place, so that at no moment others could reach it; a socket on which somebody listens is left alone.
func Listen(address, group string) (net.Listener, error) {
	if conn, err := net.DialTimeout("unix", address, time.Second); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("open socket: another process listens on %s", address)
	}
	if info, err := os.Lstat(address); err == nil && info.Mode()&os.ModeSocket == 0 {
		return nil, fmt.Errorf("open socket: %s exists and is no socket", address)
	}
	if err := os.MkdirAll(filepath.Dir(address), 0o750); err != nil {
		return nil, fmt.Errorf("make directory of the socket: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(address), ".s")
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	hidden := filepath.Join(dir, "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	err = os.Chmod(hidden, SocketMode)
	if err == nil {
		err = chgrp(hidden, group)
	}
	if err == nil {
		err = os.Rename(hidden, address)
	}
	if err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("open socket: %w", err)
	}
	return listener, nil
}

func chgrp(path, group string) error {
	if group == "" {
		return nil
	}
	gid, err := strconv.Atoi(group)
	if err != nil {
		g, err := user.LookupGroup(group)
		if err != nil {
			return err
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return errors.New("group " + group + " has no number")
		}
	}
	return os.Chown(path, -1, gid)
}
