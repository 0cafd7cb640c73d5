// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/health"
)

// manager is the service manager that started the daemon, told by $NOTIFY_SOCKET and $WATCHDOG_USEC. Without one nothing
// is told.
type manager struct {
	log *slog.Logger
	// answers says whether the daemon works; it may take its time.
	answers func(ctx context.Context) bool
	// tell sends a state and says whether there is somebody to hear it.
	tell func(state string) (bool, error)
	// watchdog is within which time something must be told; 0 if nothing must.
	watchdog time.Duration
	close    func()
}

// newManager makes one that asks the daemon over its IRI socket. What a restart does not mend, such as a full disk, is
// not asked.
func newManager(iriAddress string, log *slog.Logger) (*manager, error) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("read the watchdog's time: %w", err)
	}
	iri, err := health.IRICheck(iriAddress, health.Live)
	if err != nil {
		return nil, err
	}
	return &manager{
		log: log, watchdog: interval, close: iri.Close,
		answers: func(ctx context.Context) bool { return iri.Probe(ctx) == nil },
		tell:    func(state string) (bool, error) { return daemon.SdNotify(false, state) },
	}, nil
}

// say tells a state. The guests go on whoever hears it, so a failure is only logged.
func (m *manager) say(state string) {
	if _, err := m.tell(state); err != nil {
		m.log.Warn("the service manager is not told", "state", state, "error", err)
	}
}

func (m *manager) ready()    { m.say(daemon.SdNotifyReady) }
func (m *manager) stopping() { m.say(daemon.SdNotifyStopping) }

// run feeds the watchdog as long as the daemon answers, until ctx ends.
func (m *manager) run(ctx context.Context) error {
	if m.watchdog == 0 {
		return nil
	}
	tick := time.NewTicker(m.watchdog / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// A server that is overloaded is slow, not hung: it is given far more time than a probe of health.
		ask, cancel := context.WithTimeout(ctx, m.watchdog/2)
		ok := m.answers(ask)
		cancel()
		if ok {
			m.say(daemon.SdNotifyWatchdog)
		} else if ctx.Err() == nil {
			m.log.Warn("the daemon does not answer itself; the service manager will end it", "within", m.watchdog)
		}
	}
}
