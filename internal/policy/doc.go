// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package policy holds the rules of this repository as tests, so that they are kept without anybody watching: what
// every file and package must have, how long they may get, which room may use which, and what the daemon depends on.
//
// It exists because rules that live in a document only are forgotten. A broken rule fails "go test" with the place,
// the reason and what to do. It must never hold code of its own: everything is in the tests. A rule that turns out
// wrong is changed here, in the open, and not worked around.
package policy
