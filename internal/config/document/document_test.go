// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package document_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config/document"
)

func TestTheNearestCandidateIsWhatATypistMeant(t *testing.T) {
	keys := []string{"workers", "maxBackoff", "ttl", "max", "level"}
	for typed, want := range map[string]string{
		"worker":         "workers",
		"wrokers":        "workers",
		"max-backoff":    "maxBackoff",
		"MAX_BACKOFF":    "maxBackoff",
		"tll":            "ttl",
		"lvl":            "",
		"lavel":          "level",
		"something else": "",
		"":               "",
		"z":              "",
	} {
		if got := document.Nearest(typed, keys); got != want {
			t.Errorf("%q is taken for %q, want %q", typed, got, want)
		}
	}
}

func TestQuantitiesAreRoundedUpAndBounded(t *testing.T) {
	for text, want := range map[string]int64{"2": 2, "500m": 1, "1.5": 2, "4Gi": 4 << 30, "1e3": 1000, "-1": -1, "0": 0, "1n": 1, "+5": 5, ".5k": 500} {
		if got, err := document.ParseQuantity(text); err != nil || got != want {
			t.Errorf("%q gives %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", " 1", "1 Gi", "1GB", "0x10", "1e100", "9e18000", "16Ei", "-16Ei", "1e99", ".", "NaN"} {
		if got, err := document.ParseQuantity(text); err == nil {
			t.Errorf("%q was read as %d", text, got)
		}
	}
}

func TestSizesAreWholeAndNotNegative(t *testing.T) {
	for _, text := range []string{"1.5", "1m", "-1", "8Ei", "-0.1"} {
		if got, err := document.ParseBytes(text); err == nil {
			t.Errorf("%q was read as %d", text, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, math.MaxInt64-1).Draw(t, "n")
		if got, err := document.ParseBytes(document.FormatBytes(n)); err != nil || got != n {
			t.Fatalf("%d is written %s and read as %d, %v", n, document.FormatBytes(n), got, err)
		}
	})
}

func TestDeepNestingIsRefusedBeforeItIsParsed(t *testing.T) {
	many := func(s string) []byte {
		var b []byte
		for range 20_000 {
			b = append(b, s...)
		}
		return b
	}
	for _, opener := range []string{"[", "{", "- ", "? ", "{a: ", "[[{"} {
		if _, report := document.Parse(many(opener), "x"); report.Err() == nil {
			t.Errorf("20,000 times %q was accepted", opener)
		}
	}
}
