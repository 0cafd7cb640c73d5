// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cloudhypervisor

import "os"

// openTap leaves it to the VMM, which runs on Linux alone.
func openTap(string, int) ([]*os.File, error) { return nil, ErrTapByName }

func detachQueues([]*os.File) {}

func tapBehind(int, int) (name string, known bool) { return "", false }

func directAlignment(string) (bytes int64, known bool) { return 0, false }
