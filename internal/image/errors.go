// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

// Kind says why a pull failed.
type Kind int

// The kinds of failure. Permanent kinds need somebody to change the reference, the image, the credentials or the
// configuration; they are still tried again, at the longest interval, because the change may happen elsewhere.
const (
	Unavailable     Kind = iota // registry or network cannot be reached now, or answered with a server error
	Unauthenticated             // registry wants other credentials (permanent)
	NotFound                    // registry does not know repository, tag, digest or blob (permanent)
	Invalid                     // reference, manifest, platform or configuration is unusable (permanent)
	Corrupt                     // bytes received differ from what the digest names; they were thrown away
	Exhausted                   // not enough disk space, or the cache's budget is used up
)

var kindNames = [...]string{"unavailable", "unauthenticated", "not found", "invalid", "corrupt", "exhausted"}

// String returns the kind in words.
func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind %d", int(k))
	}
	return kindNames[k]
}

// Permanent reports whether waiting alone will not help.
func (k Kind) Permanent() bool { return k == Unauthenticated || k == NotFound || k == Invalid }

// ErrClosed is returned by every method after Close.
var ErrClosed = errors.New("image cache is closed")

// PullingError says that the image is on its way. The Observer hears when the pull ends.
type PullingError struct {
	Ref   string // as asked
	Done  int64  // bytes present so far
	Total int64  // bytes of all blobs; 0 while the manifest is not known or the pull waits for its turn

	Verifying bool // the bytes counted were in the cache and are proven again
}

// Error describes the progress.
func (e *PullingError) Error() string {
	if e.Total == 0 {
		return fmt.Sprintf("image %s is being pulled", e.Ref)
	}
	doing := "pulled"
	if e.Verifying {
		doing = "verified"
	}
	return fmt.Sprintf("image %s is being %s: %d of %d bytes", e.Ref, doing, e.Done, e.Total)
}

// PullFailedError says that the last pull failed. The first Get from RetryAt on starts another one.
type PullFailedError struct {
	Ref     string // as asked
	Kind    Kind
	Err     error
	RetryAt time.Time
}

// Error describes the failure.
func (e *PullFailedError) Error() string {
	return fmt.Sprintf("pull image %s: %s: %v", e.Ref, e.Kind, e.Err)
}

// Unwrap returns the cause.
func (e *PullFailedError) Unwrap() error { return e.Err }

// Permanent reports whether waiting alone will not help; see Kind.
func (e *PullFailedError) Permanent() bool { return e.Kind.Permanent() }

// kindError gives a kind to an error of our own finding.
type kindError struct {
	kind Kind
	err  error
}

func (e *kindError) Error() string { return e.err.Error() }
func (e *kindError) Unwrap() error { return e.err }

func failf(kind Kind, format string, args ...any) error {
	return &kindError{kind: kind, err: fmt.Errorf(format, args...)}
}

// KindOf classifies an error of this package or below it. What it does not know counts as Unavailable, since that is
// retried soon and promises nothing.
func KindOf(err error) Kind {
	var pull *PullFailedError
	var own *kindError
	var response *errcode.ErrorResponse
	switch {
	case errors.As(err, &pull):
		return pull.Kind
	case errors.As(err, &own):
		return own.kind
	case errors.As(err, &response):
		return kindOfStatus(response.StatusCode)
	case errors.Is(err, errdef.ErrNotFound):
		return NotFound
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return Unauthenticated
	case errors.Is(err, http.ErrSchemeMismatch):
		return Invalid
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return Exhausted
	case errors.Is(err, content.ErrMismatchedDigest), errors.Is(err, content.ErrTrailingData):
		return Corrupt
	case errors.Is(err, errdef.ErrSizeExceedsLimit):
		return Invalid
	}
	return Unavailable
}

func kindOfStatus(status int) Kind {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return Unauthenticated
	case status == http.StatusNotFound:
		return NotFound
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests, status >= 500:
		return Unavailable
	case status >= 400:
		return Invalid
	}
	return Unavailable
}

// explain adds what the operator can do where the bare error would not tell.
func explain(err error, host string) error {
	if errors.Is(err, http.ErrSchemeMismatch) {
		return fmt.Errorf("%w (registry %s speaks plain HTTP; list it among the plain-HTTP registries to allow that)", err, host)
	}
	return err
}

// stopped reports whether err comes from our own shutdown and not from the registry.
func stopped(ctx context.Context, err error) bool { return err != nil && ctx.Err() != nil }
