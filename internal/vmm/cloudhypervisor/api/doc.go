// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package api is a typed client of Cloud Hypervisor's REST API over its Unix socket, and a reader of its event
// monitor's file. It exists because the server behind that socket is peculiar in ways that generic clients trip
// over: it refuses chunked bodies, dies on big ones, takes ten connections at most, answers with an empty reason
// phrase, and tells its failures apart only by text, in three dialects (up to v52, v53, and what follows v53).
//
// The package must never decide what to do about a failure, never retry a call, never branch on an HTTP status
// alone, and never take silence for an answer: what could not be asked is ErrUnavailable.
package api
