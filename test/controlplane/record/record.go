// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package record stands between a machinepoollet and a machine runtime: it passes every call on, unchanged, and
// remembers it.
//
// It exists so that tests can tell what a poollet asks for, and above all that it stops asking: a runtime that echoes a
// machine in another form than it was asked for makes the poollet correct it for ever. It must never answer by itself,
// but for Unavailable while the runtime is not there.
package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
	"sync"
	"time"

	_ "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1" // whose calls are passed on by name
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// maxMessage is what gRPC takes by default; a runtime that answers with more has to be seen to fail.
const maxMessage = 4 << 20

// Call is one call of the poollet.
type Call struct {
	Method  string // without the service
	Request string // as JSON; secrets included, since it is a test's
	Code    codes.Code
	Time    time.Time // when it was answered
	Took    time.Duration
}

func (c Call) String() string {
	return fmt.Sprintf("%s %s -> %v in %v", c.Method, c.Request, c.Code, c.Took.Round(time.Millisecond))
}

// Recorder is a running proxy. Its methods may be called from several goroutines.
type Recorder struct {
	server   *grpc.Server
	upstream *grpc.ClientConn
	served   chan error

	mu    sync.Mutex
	calls []Call
}

// Start listens on a socket and passes calls on to that of a runtime, which may come and go.
func Start(socket, runtime string) (*Recorder, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen for the poollet: %w", err)
	}
	upstream, err := grpc.NewClient("unix://"+runtime, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reach the runtime: %w", err), listener.Close())
	}
	r := &Recorder{upstream: upstream, served: make(chan error, 1)}
	r.server = grpc.NewServer(grpc.UnknownServiceHandler(r.pass), grpc.MaxRecvMsgSize(maxMessage))
	go func() { r.served <- r.server.Serve(listener) }()
	return r, nil
}

// Close ends the proxy.
func (r *Recorder) Close() error {
	r.server.Stop()
	err := <-r.served
	return errors.Join(err, r.upstream.Close())
}

// pass answers one unary call, whose types are found by its name.
func (r *Recorder) pass(_ any, stream grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(stream)
	method, err := describe(full)
	if err != nil {
		return status.Error(codes.Unimplemented, err.Error())
	}
	request, answer := dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output())
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	ctx := stream.Context()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	began := time.Now()
	err = r.upstream.Invoke(ctx, full, request, answer)
	r.note(Call{Method: path.Base(full), Request: text(request), Code: status.Code(err), Time: time.Now(), Took: time.Since(began)})
	if err != nil {
		return err
	}
	return stream.SendMsg(answer)
}

func describe(full string) (protoreflect.MethodDescriptor, error) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(full, "/"), "/", "."))
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", full, err)
	}
	method, ok := found.(protoreflect.MethodDescriptor)
	if !ok || method.IsStreamingClient() || method.IsStreamingServer() {
		return nil, fmt.Errorf("%s is not a unary method", full)
	}
	return method, nil
}

func text(m proto.Message) string {
	raw, err := protojson.Marshal(m)
	if err != nil {
		return err.Error()
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil { // protojson puts spaces in at random, lest anybody compares
		return err.Error()
	}
	return b.String()
}

func (r *Recorder) note(c Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
}

// Since returns what was answered after a time, the oldest first.
func (r *Recorder) Since(begin time.Time) []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	var calls []Call
	for _, c := range r.calls {
		if c.Time.After(begin) {
			calls = append(calls, c)
		}
	}
	return calls
}

// WaitFor returns the first call of a method after a time, and waits for it.
func (r *Recorder) WaitFor(ctx context.Context, method string, begin time.Time) (Call, error) {
	for {
		for _, c := range r.Since(begin) {
			if c.Method == method {
				return c, nil
			}
		}
		select {
		case <-ctx.Done():
			return Call{}, fmt.Errorf("wait for a call of %s: %w", method, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Idle are the calls that a poollet makes for ever although nothing is to be done.
func Idle(method string) bool {
	switch method {
	case "ListMachines", "Status", "ListEvents", "Version":
		return true
	default:
		return false
	}
}
