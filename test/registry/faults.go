// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"net/http"
	"strings"
	"time"
)

// Kind is what a request is about.
type Kind string

// Kinds of requests.
const (
	KindBlob     Kind = "blob"
	KindManifest Kind = "manifest"
	KindUpload   Kind = "upload"
	KindOther    Kind = "other"
)

// classify returns the kind of a path and the digest, tag or upload at its end.
func classify(path string) (Kind, string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	last := len(parts) - 1
	switch {
	case last >= 3 && parts[last-1] == "manifests":
		return KindManifest, parts[last]
	case last >= 3 && parts[last-2] == "blobs" && parts[last-1] == "uploads", parts[last] == "uploads":
		return KindUpload, parts[last]
	case last >= 3 && parts[last-1] == "blobs":
		return KindBlob, parts[last]
	default:
		return KindOther, parts[last]
	}
}

// Request is a request as it came, also one that was refused.
type Request struct {
	Method string
	Path   string
	Kind   Kind
	// Name is the digest or tag that was asked for.
	Name string
	// Range is the Range header.
	Range string
}

// Fault is misbehaviour on request. It hits requests that match Kind, Method and Name, after Skip of them have gone
// well, Times times. Delay, Status and the three body faults may be combined.
type Fault struct {
	// Kind of request; default KindBlob.
	Kind Kind
	// Method of the request; default GET.
	Method string
	// Name is the digest or tag; empty means any.
	Name string
	// Skip is how many matching requests are served well first.
	Skip int
	// Times is how many are hit; 0 means once, negative means for ever.
	Times int

	// Delay before anything is answered; the client going away ends it.
	Delay time.Duration
	// Status is answered instead, with no body; a RetryAfter goes with it.
	Status     int
	RetryAfter string
	// Cut drops the connection after CutAfter bytes of the body.
	Cut      bool
	CutAfter int64
	// Corrupt inverts the body's byte at CorruptAt.
	Corrupt   bool
	CorruptAt int64
	// BytesPerSecond slows the body down; 0 is full speed.
	BytesPerSecond int64
}

type armedFault struct {
	Fault
	skip, left int
}

// Inject arms a fault. Of several that match, the one injected first hits.
func (s *Server) Inject(f Fault) {
	if f.Kind == "" {
		f.Kind = KindBlob
	}
	if f.Method == "" {
		f.Method = http.MethodGet
	}
	if f.Times == 0 {
		f.Times = 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &armedFault{Fault: f, skip: f.Skip, left: f.Times})
}

// ClearFaults disarms every fault; requests that were hit already stay so.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Requests returns all requests so far, in the order they came.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Count returns how many requests of a kind and method came so far. The method may be empty for any.
func (s *Server) Count(kind Kind, method string) int {
	n := 0
	for _, r := range s.Requests() {
		if r.Kind == kind && (method == "" || r.Method == method) {
			n++
		}
	}
	return n
}

// ResetRequests forgets the requests so far.
func (s *Server) ResetRequests() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

// record notes the request and returns the fault that hits it, if one does.
func (s *Server) record(r *http.Request) *Fault {
	kind, name := classify(r.URL.Path)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, Request{
		Method: r.Method, Path: r.URL.Path, Kind: kind, Name: name, Range: r.Header.Get("Range"),
	})
	if !s.authorized(r) {
		return nil // the first try of a client that has credentials must not use the fault up
	}
	for _, f := range s.faults {
		if f.Kind != kind || f.Method != r.Method || (f.Name != "" && f.Name != name) || f.left == 0 {
			continue
		}
		if f.skip > 0 {
			f.skip--
			continue
		}
		if f.left > 0 {
			f.left--
		}
		hit := f.Fault
		return &hit
	}
	return nil
}

// apply does what comes before the body and returns the writer that spoils it. handled means the request is answered.
func (f *Fault) apply(w http.ResponseWriter, r *http.Request) (_ http.ResponseWriter, handled bool) {
	if f.Delay > 0 && !wait(r, f.Delay) {
		return w, true
	}
	if f.Status != 0 {
		if f.RetryAfter != "" {
			w.Header().Set("Retry-After", f.RetryAfter)
		}
		w.WriteHeader(f.Status)
		return w, true
	}
	if f.Cut || f.Corrupt || f.BytesPerSecond > 0 {
		return &spoiledWriter{ResponseWriter: w, fault: f, request: r}, false
	}
	return w, false
}

// wait returns false when the client has gone before the time was over.
func wait(r *http.Request, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// spoiledWriter counts the body's bytes and spoils it where the fault says. It hides the io.ReaderFrom of the writer
// below, which would pass it by.
type spoiledWriter struct {
	http.ResponseWriter
	fault   *Fault
	request *http.Request
	sent    int64
}

func (w *spoiledWriter) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		chunk := w.chunk(p)
		n, err := w.ResponseWriter.Write(chunk)
		w.sent += int64(n)
		total += n
		if err != nil {
			return total, err
		}
		p = p[n:]
		if w.fault.Cut && w.sent >= w.fault.CutAfter {
			w.abort()
		}
		if rate := w.fault.BytesPerSecond; rate > 0 {
			_ = http.NewResponseController(w.ResponseWriter).Flush()
			if !wait(w.request, time.Duration(int64(n)*int64(time.Second)/rate)) {
				w.abort()
			}
		}
	}
	return total, nil
}

// chunk is the next piece to send, spoiled if it has to be.
func (w *spoiledWriter) chunk(p []byte) []byte {
	limit := int64(len(p))
	if w.fault.Cut {
		if w.fault.CutAfter <= w.sent {
			w.abort()
		}
		limit = min(limit, w.fault.CutAfter-w.sent)
	}
	if rate := w.fault.BytesPerSecond; rate > 0 {
		const steps = 20 // pieces a second
		limit = min(limit, max(rate/steps, 1))
	}
	out := p[:limit]
	if at := w.fault.CorruptAt - w.sent; w.fault.Corrupt && at >= 0 && at < limit {
		out = append([]byte(nil), out...)
		out[at] ^= 0xff
	}
	return out
}

// abort drops the connection, after what was written so far has been sent.
func (w *spoiledWriter) abort() {
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}
