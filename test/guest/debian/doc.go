// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package debian gets files out of Debian packages without installing them.
//
// The demo guest and the end-to-end tests need a kernel, a static busybox and a registry server that the host itself
// has no use for. This package downloads such a package with apt-get, unpacks it below a cache directory and remembers
// the result, so that the second run needs no network. It needs no root.
//
// It must never install, configure or start anything on the host, and never write outside its cache directory.
package debian
