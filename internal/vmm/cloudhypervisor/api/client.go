// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

const (
	// maxRequestBody is the greatest body sent: up to v53 the server takes 51,200 bytes, and a later one with the
	// limit raised was seen dying of a 300 KB body.
	maxRequestBody = 50_000
	// maxResponseBody bounds what is read of an answer. A vm.info is a few KB plus the OEM strings.
	maxResponseBody = 16 << 20
	// maxConcurrent is the number of connections this client opens at once; the server takes ten of all clients.
	maxConcurrent = 4
	// minLongTimeout is more than the 60 s for which the server waits for a vhost-user backend.
	minLongTimeout = 90 * time.Second
)

// Timeouts cap the calls. A context that ends earlier wins.
type Timeouts struct {
	Query  time.Duration // ping, info, counters; default 10 s
	Change time.Duration // calls that act at once; default 30 s
	Long   time.Duration // create, boot, reboot, add-*; default 120 s, at least 90 s
}

// Options are the options of a Client.
type Options struct {
	Socket   string // path of the API socket; required
	Timeouts Timeouts
	// Dial opens a connection to the socket; the default dials the Unix socket.
	Dial func(ctx context.Context, socket string) (net.Conn, error)
}

// Client speaks to one VMM. It keeps no connection open between calls, so that an idle VMM costs nothing and a
// restarted one is never spoken to over a dead connection. It is safe for concurrent use.
type Client struct {
	http     *http.Client
	dial     func(ctx context.Context) (net.Conn, error)
	timeouts Timeouts
	slots    chan struct{}
}

// New returns a client. It does not connect.
func New(o Options) (*Client, error) {
	if o.Socket == "" {
		return nil, errors.New("api client: no socket given")
	}
	t := o.Timeouts
	t.Query = orDefault(t.Query, 10*time.Second)
	t.Change = orDefault(t.Change, 30*time.Second)
	t.Long = orDefault(t.Long, 120*time.Second)
	if t.Query < 0 || t.Change < 0 || t.Long < minLongTimeout {
		return nil, fmt.Errorf("api client: timeouts %v, %v, %v: must be positive, the last at least %v",
			t.Query, t.Change, t.Long, minLongTimeout)
	}
	dialSocket := o.Dial
	if dialSocket == nil {
		dialSocket = dialUnix
	}
	dial := func(ctx context.Context) (net.Conn, error) { return dialSocket(ctx, o.Socket) }
	transport := &http.Transport{
		DisableKeepAlives:  true,
		DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx)
		},
	}
	return &Client{
		http:     &http.Client{Transport: transport},
		dial:     dial,
		timeouts: t,
		slots:    make(chan struct{}, maxConcurrent),
	}, nil
}

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

func dialUnix(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", socket)
}

// call is one request: body and answer may be nil.
type call struct {
	method  string
	name    string // "vm.boot"
	timeout time.Duration
	body    any
	answer  any
	files   []*os.File // sent beside the body
}

func (c *Client) do(ctx context.Context, k call) error {
	body, err := encode(k)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return unavailable(k.name, ctx.Err())
	}
	// A bytes.Reader gives the request a known length; the server refuses chunked bodies.
	var reader io.Reader = http.NoBody
	if body != nil {
		reader = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, k.method, "http://localhost/api/v1/"+k.name, reader)
	if err != nil {
		return fmt.Errorf("%s: make request: %w", k.name, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "cloud-hypervisor-provider")
	if len(k.files) > 0 {
		return c.doWithFiles(req, k)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return unavailable(k.name, err)
	}
	defer resp.Body.Close()
	return receive(k, resp)
}

func encode(k call) ([]byte, error) {
	if k.body == nil {
		return nil, nil
	}
	body, err := json.Marshal(k.body)
	if err != nil {
		return nil, fmt.Errorf("%s: encode request: %w", k.name, err)
	}
	if len(body) >= maxRequestBody {
		return nil, fmt.Errorf("%s: request of %d bytes: %w", k.name, len(body), ErrBodyTooLarge)
	}
	return body, nil
}

func receive(k call, resp *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxResponseBody+1))
	if err != nil {
		return unavailable(k.name, err)
	}
	if len(data) > maxResponseBody {
		return fmt.Errorf("%s: answer is longer than %d bytes", k.name, maxResponseBody)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return failure(k.name, resp.StatusCode, data)
	}
	if k.answer == nil || len(data) == 0 {
		return nil
	}
	if err := json.Unmarshal(data, k.answer); err != nil {
		return fmt.Errorf("%s: decode answer: %w", k.name, err)
	}
	return nil
}

// BodySize returns the length of a request body, and ErrBodyTooLarge if the server would not take it.
func BodySize(body any) (int, error) {
	data, err := encode(call{name: "vm.create", body: body})
	return len(data), err
}
