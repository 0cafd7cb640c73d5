// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package api

import (
	"errors"
	"os"
)

func openEventFile(path string) (*os.File, error) { return os.Open(path) }

func reclaim(*os.File, int64) error { return errors.ErrUnsupported }
