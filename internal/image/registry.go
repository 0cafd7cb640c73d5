// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

const (
	dialTimeout     = 15 * time.Second
	headerTimeout   = 30 * time.Second
	manifestTimeout = time.Minute
	// defaultStall is how long a download may deliver nothing before the connection is given up and resumed.
	defaultStall = time.Minute
	// maxErrorBody bounds what is read of a registry's error answer, in bytes.
	maxErrorBody = 8 << 10
)

// client speaks to registries: transport, credentials, and which hosts may be asked without TLS.
type client struct {
	http  *auth.Client
	base  http.RoundTripper
	plain map[string]bool
	stall time.Duration
}

func newClient(o Options) (*client, error) {
	c := &client{base: o.Transport, plain: map[string]bool{}, stall: defaultStall}
	if c.base == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.DialContext = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
		t.ResponseHeaderTimeout = headerTimeout
		t.MaxIdleConnsPerHost = o.MaxPulls
		c.base = t
	}
	for _, host := range o.PlainHTTP {
		if host == "" || strings.ContainsAny(host, "/@ ") {
			return nil, fmt.Errorf("plain-HTTP registry %q: want host or host:port", host)
		}
		c.plain[plainKey(host)] = true
	}
	c.http = &auth.Client{
		Client: &http.Client{Transport: c},
		Header: http.Header{"User-Agent": {"cloud-hypervisor-provider"}},
		Cache:  auth.NewCache(),
	}
	if o.DockerConfig != "" {
		if _, err := os.Stat(o.DockerConfig); err != nil {
			return nil, fmt.Errorf("read docker config: %w", err)
		}
		if _, err := openCredentials(o); err != nil {
			return nil, err
		}
		// Read anew each time, so that a rotated password needs no restart.
		c.http.Credential = func(ctx context.Context, hostport string) (auth.Credential, error) {
			store, err := openCredentials(o)
			if err != nil {
				return auth.EmptyCredential, err
			}
			return credentials.Credential(store)(ctx, hostport)
		}
	}
	return c, nil
}

func openCredentials(o Options) (credentials.Store, error) {
	if o.CredentialHelpers {
		store, err := credentials.NewStore(o.DockerConfig, credentials.StoreOptions{})
		if err != nil {
			return nil, failf(Unauthenticated, "read docker config: %w", err)
		}
		return store, nil
	}
	store, err := credentials.NewFileStore(o.DockerConfig)
	if err != nil {
		return nil, failf(Unauthenticated, "read docker config: %w", err)
	}
	return store, nil
}

// plainKey makes "host" and "host:80" the same, as they are for HTTP.
func plainKey(host string) string { return strings.TrimSuffix(strings.ToLower(host), ":80") }

// RoundTrip keeps every request to TLS unless its host is listed, whatever a redirect or a token realm asks for.
func (c *client) RoundTrip(req *http.Request) (*http.Response, error) {
	allowed := req.URL.Scheme == "https" || req.URL.Scheme == "http" && c.plain[plainKey(req.URL.Host)]
	if !allowed {
		return nil, failf(Invalid, "refuse %s request to %s: not among the plain-HTTP registries", req.URL.Scheme, req.URL.Host)
	}
	return c.base.RoundTrip(req)
}

// closeIdle drops kept-alive connections, each of which holds two goroutines.
func (c *client) closeIdle() {
	if t, ok := c.base.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// source is one repository of one registry.
type source struct {
	client *client
	ref    reference
	repo   *remote.Repository
}

func (c *client) source(ref reference) *source {
	r := ref.oras()
	return &source{client: c, ref: ref, repo: &remote.Repository{
		Client: c.http, Reference: r, PlainHTTP: c.plain[plainKey(r.Host())],
		ManifestMediaTypes: manifestMediaTypes(), MaxMetadataBytes: maxManifestSize,
	}}
}

// manifest fetches a manifest or index by tag or digest and proves its digest.
func (s *source) manifest(ctx context.Context, tagOrDigest string) ([]byte, digest.Digest, error) {
	ctx, cancel := context.WithTimeout(ctx, manifestTimeout)
	defer cancel()
	desc, body, err := s.repo.Manifests().FetchReference(ctx, tagOrDigest)
	if err != nil {
		return nil, "", fmt.Errorf("fetch manifest: %w", explain(err, s.ref.registry))
	}
	defer body.Close()
	if err := checkDescriptor(desc, maxManifestSize); err != nil {
		return nil, "", fmt.Errorf("fetch manifest: %w", err)
	}
	data, err := content.ReadAll(body, desc)
	if err != nil {
		return nil, "", fmt.Errorf("fetch manifest: %w", err)
	}
	return data, desc.Digest, nil
}

// blob opens a blob at an offset. The body starts at the offset returned, which is 0 when the registry does not know
// ranges, and ends where the connection or the blob does.
func (s *source) blob(ctx context.Context, desc ocispec.Descriptor, offset int64) (io.ReadCloser, int64, error) {
	ref := s.repo.Reference
	scheme := "https"
	if s.repo.PlainHTTP {
		scheme = "http"
	}
	url := fmt.Sprintf("%s://%s/v2/%s/blobs/%s", scheme, ref.Host(), ref.Repository, desc.Digest)
	ctx = auth.AppendRepositoryScope(ctx, ref, auth.ActionPull)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, 0, fmt.Errorf("fetch blob: %w", err)
	}
	req.Header.Set("Accept-Encoding", "identity") // the digest is over the bytes as stored
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, desc.Size-1))
	}
	resp, err := s.client.http.Do(req)
	if err != nil {
		return nil, 0, fmt.Errorf("fetch blob: %w", explain(err, s.ref.registry))
	}
	start, err := bodyStart(resp, desc, offset)
	if err != nil {
		resp.Body.Close()
		return nil, 0, fmt.Errorf("fetch blob %s: %w", desc.Digest, err)
	}
	return resp.Body, start, nil
}

// bodyStart checks status and lengths and returns the offset at which the body begins.
func bodyStart(resp *http.Response, desc ocispec.Descriptor, offset int64) (int64, error) {
	switch {
	case resp.StatusCode == http.StatusOK:
		offset = 0
	case resp.StatusCode == http.StatusPartialContent && offset > 0:
		var first, last, size int64
		if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &size); err != nil ||
			first != offset || size != desc.Size {
			return 0, failf(Corrupt, "registry answered range %q of a blob of %d bytes, asked from %d",
				resp.Header.Get("Content-Range"), desc.Size, offset)
		}
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return 0, failf(Corrupt, "registry cannot serve the blob from byte %d", offset)
	default:
		return 0, responseError(resp)
	}
	if n := resp.ContentLength; n >= 0 && resp.StatusCode == http.StatusOK && n != desc.Size {
		return 0, failf(Corrupt, "registry has %d bytes, the manifest says %d", n, desc.Size)
	}
	return offset, nil
}

func responseError(resp *http.Response) error {
	e := &errcode.ErrorResponse{Method: resp.Request.Method, URL: resp.Request.URL, StatusCode: resp.StatusCode}
	var body struct {
		Errors errcode.Errors `json:"errors"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxErrorBody)).Decode(&body); err == nil {
		e.Errors = body.Errors
	}
	if u := resp.Request.URL; u.RawQuery != "" {
		// A redirect to storage carries its permission in the query.
		clean := *u
		clean.RawQuery = ""
		e.URL = &clean
	}
	return e
}

// errStalled is the cause when a download delivered nothing for too long.
var errStalled = errors.New("registry sent no data for too long")
