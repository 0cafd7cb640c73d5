// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package event

// maxSpans bounds what is remembered of one event: five minutes of it every five seconds, and more when it is repeated
// more often, since seconds that follow each other are one span.
const maxSpans = 64

// span is a time, in whole Unix seconds, in each of which something happened.
type span struct{ first, last int64 }

// happened adds a second that is not before those that are there. The gap between the two oldest spans is forgotten
// when there are too many: an old window may then show an event that fell beside it, but none misses one.
func happened(spans []span, at int64) []span {
	if n := len(spans); n > 0 && at <= spans[n-1].last+1 {
		spans[n-1].last = max(spans[n-1].last, at)
		return spans
	}
	spans = append(spans, span{at, at})
	if len(spans) > maxSpans {
		spans[1].first = spans[0].first
		spans = append(spans[:0], spans[1:]...)
	}
	return spans
}

// lastIn returns the last second in [from, to) that is in a span.
func lastIn(spans []span, from, to int64) (at int64, ok bool) {
	for i := len(spans) - 1; i >= 0 && spans[i].last >= from; i-- {
		if at := min(spans[i].last, to-1); at >= max(spans[i].first, from) {
			return at, true
		}
	}
	return 0, false
}
