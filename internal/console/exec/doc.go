// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package exec serves the consoles of machines to remote clients, as the IRI call Exec promises. The call is answered
// with a URL whose last element is a token; whoever opens that URL once, within a minute, is on the machine's console.
// The clients are those of Kubernetes (client-go's executors, "irictl-machine exec"), whose upgrade the machinepoollet
// passes on unchanged, so the server speaks what they do: SPDY/3.1 with the stream protocols v1 to v5, by POST and GET,
// and WebSocket with v5.channel.k8s.io, v4.channel.k8s.io, channel.k8s.io and the base64 forms of the latter two.
//
// A console is a serial line: it has no size, so resizes are read and dropped, and one output, so there is no stderr.
//
// What flows where:
//
//	client ──▶ Server (token) ──▶ transport (SPDY or WebSocket) ──▶ terminal ──▶ Attacher (the console hub)
//
// It must never let anybody in without an unused token; never write a token to a log; never answer that it has no room
// for another token; and never keep a session whose client is gone for longer than three keep-alive intervals.
package exec
