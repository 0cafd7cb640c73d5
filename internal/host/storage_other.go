// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !darwin

package host

import (
	"errors"
	"os"
)

const socketPathMax = 103 // the smallest of the systems known

func platformStatfs(*Storage) error { return errors.ErrUnsupported }

func platformClone(_, _ *os.File) error { return errors.ErrUnsupported }

func tryDirect(string) error { return errors.ErrUnsupported }
