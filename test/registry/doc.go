// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package registry runs OCI registries on the loopback address for tests and the demo.
//
// Start runs one in this process: it keeps blobs and manifests in a directory, so what was pushed is there again after
// a restart; it answers range requests, so that resumed downloads can be tested; and it fails on request (Fault): cut
// connections, damaged bytes, error answers, delays, slow bodies. StartDebian runs Debian's docker-registry, for tests
// that want a server written by others.
//
// It must never listen on another address than loopback, and it is no registry for real use: there is no TLS, and
// uploads are held in memory.
package registry
