// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package vmmtest

import "testing"

// suiteCase is one sentence of the suite.
type suiteCase struct {
	name string
	run  func(b *bench)
}

// Conformance runs the whole suite, one sub-test a sentence.
func Conformance(t *testing.T, s Setup) {
	t.Helper()
	s = s.withDefaults(t)
	for _, cases := range [][]suiteCase{lifecycleCases(), guestCases(), agentCases(), faultCases(), plugCases()} {
		runCases(t, s, cases)
	}
	// It counts what is open in this process, hence comes last and alone.
	t.Run("many lives leak nothing", func(t *testing.T) { leaks(t, s) })
}

// Plugging runs only the cases of devices that come and go, for a guest beside the one of the whole suite.
func Plugging(t *testing.T, s Setup) {
	t.Helper()
	runCases(t, s.withDefaults(t), plugCases())
}

func runCases(t *testing.T, s Setup, cases []suiteCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(newBench(t, s)) })
	}
}
