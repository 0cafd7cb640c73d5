// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/opencontainers/go-digest"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/image"
)

// maxAnswer bounds an answer in bytes.
const maxAnswer = 64 << 20

// Client asks a daemon. It keeps no connection open.
type Client struct{ http *http.Client }

var _ Cache = (*Client)(nil)

// NewClient returns a client of the daemon that listens on a socket. It does not connect yet: that there is no daemon
// is an error (fs.ErrNotExist or ECONNREFUSED) of the calls.
func NewClient(socket string) *Client {
	return &Client{http: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
}

// Error is what the daemon answered to a request that failed.
type Error struct {
	Kind    string // of package image, in words, such as "corrupt"
	Message string
}

// Error returns the daemon's words.
func (e *Error) Error() string { return e.Message }

// List returns what the cache holds.
func (c *Client) List(ctx context.Context) (image.Listing, error) {
	var l image.Listing
	err := c.do(ctx, http.MethodGet, pathList, nil, &l)
	return l, err
}

// Prune removes what nobody references; with dryRun it only says what that is.
func (c *Client) Prune(ctx context.Context, dryRun bool) (image.Pruned, error) {
	var p image.Pruned
	err := c.do(ctx, http.MethodPost, pathPrune, pruneRequest{DryRun: dryRun}, &p)
	return p, err
}

// Verify reads every byte of an image and proves its digests. It ends early with ctx.
func (c *Client) Verify(ctx context.Context, d digest.Digest) error {
	return c.do(ctx, http.MethodPost, pathVerify, verifyRequest{Digest: d}, &struct{}{})
}

func (c *Client) do(ctx context.Context, method, path string, body, into any) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://daemon"+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	decoder := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode != http.StatusOK {
		var f failure
		if err := decoder.Decode(&f); err != nil || f.Message == "" {
			return fmt.Errorf("daemon answered %s", resp.Status)
		}
		return &Error{Kind: f.Kind, Message: f.Message}
	}
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return nil
}
