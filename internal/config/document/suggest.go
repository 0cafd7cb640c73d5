// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package document

import "strings"

// longestGuess bounds the edit distance table; no key or allowed value is near as long.
const longestGuess = 64

// Nearest returns the candidate that a typist most likely meant, or "".
// Case, dashes and underscores do not count as differences; apart from those, one
// edit in three letters is forgiven. Of equally near candidates the first wins.
func Nearest(typed string, candidates []string) string {
	if typed == "" || len(typed) > longestGuess {
		return ""
	}
	want := fold(typed)
	best, bestDistance := "", max(1, len(want)/3)+1
	for _, c := range candidates {
		if d := distance(want, fold(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

func fold(s string) string {
	return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s))
}

// distance is the number of insertions, deletions, replacements and swaps of
// neighbours that turn a into b.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// Same is true for names that differ only in case, dashes and underscores.
func Same(a, b string) bool { return fold(a) == fold(b) }
