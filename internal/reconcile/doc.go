// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package reconcile works until the host agrees with what is wanted: it observes a machine, plans the list of named
// steps still needed and runs them. It exists to be the only place that starts, stops and removes things. Every step
// is idempotent and its record is durable before the act that it protects, so that a kill at any moment converges.
// It must never act destructively without a durable intent and a proven identity, never take "could not ask" for
// "is gone", and never wait inside a worker for something that an event will tell.
package reconcile
