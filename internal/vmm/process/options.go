// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"log/slog"
	"time"
)

// Options configures a supervisor.
type Options struct {
	// Kind is KindAuto (default), KindChild or KindSystemd; only Auto reads it.
	Kind string
	// Logger defaults to a logger that discards.
	Logger *slog.Logger
	// Now is the clock of Exit.At; defaults to time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	if o.Kind == "" {
		o.Kind = KindAuto
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}
