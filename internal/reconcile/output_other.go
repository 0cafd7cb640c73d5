// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package reconcile

import "os"

// allocated is what a file takes on disk, in bytes, at most.
func allocated(info os.FileInfo) int64 { return info.Size() }
