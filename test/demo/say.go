// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// sayFunc prints a line with the time since the demo began. As a slog.Handler it prints each record as a short line
// about the guest: the message and its first value, which is what the message is about.
type sayFunc func(format string, args ...any)

var _ slog.Handler = sayFunc(nil)

func sayer(start time.Time) sayFunc {
	return func(format string, args ...any) {
		fmt.Printf("%6.1fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
}

// Enabled implements slog.Handler.
func (sayFunc) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// Handle implements slog.Handler.
func (s sayFunc) Handle(_ context.Context, r slog.Record) error {
	about := ""
	r.Attrs(func(a slog.Attr) bool {
		about = " " + a.Value.String()
		return false
	})
	s("prepare     %s%s", r.Message, about)
	return nil
}

// WithAttrs implements slog.Handler.
func (s sayFunc) WithAttrs([]slog.Attr) slog.Handler { return s }

// WithGroup implements slog.Handler.
func (s sayFunc) WithGroup(string) slog.Handler { return s }
