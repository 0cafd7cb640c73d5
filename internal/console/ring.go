// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package console

// ringStart is what a ring takes at first, so that thousands of silent guests cost little.
const ringStart = 4 << 10

// ring keeps the last bytes of a stream. Positions count from the first byte ever appended, so a position stays true
// while the ring goes on. It grows up to max on demand and never shrinks.
type ring struct {
	max        int
	buf        []byte // byte at position p is buf[p%len(buf)]
	start, end int64
}

func (r *ring) append(p []byte) {
	if over := len(p) - r.max; over > 0 {
		r.end += int64(over)
		r.start = r.end
		p = p[over:]
	}
	r.grow(int(r.end-r.start) + len(p))
	for len(p) > 0 {
		n := copy(r.buf[r.end%int64(len(r.buf)):], p)
		r.end += int64(n)
		p = p[n:]
	}
	r.start = max(r.start, r.end-int64(len(r.buf)))
}

// grow makes room for need bytes, or for max if that is less.
func (r *ring) grow(need int) {
	size := max(len(r.buf), min(ringStart, r.max))
	for size < need && size < r.max {
		size = min(2*size, r.max)
	}
	if size == len(r.buf) {
		return
	}
	old := ring{buf: r.buf, start: r.start, end: r.end}
	r.buf = make([]byte, size)
	for p := old.start; p < old.end; {
		part := old.at(p)
		n := copy(r.buf[p%int64(size):], part)
		p += int64(n)
	}
}

// at returns the longest piece that lies in one piece in memory from position p, which must be within start and end.
func (r *ring) at(p int64) []byte {
	if p == r.end {
		return nil
	}
	i := p % int64(len(r.buf))
	return r.buf[i:min(int64(len(r.buf)), i+r.end-p)]
}

// read copies from position p on into dst. What was overwritten already is skipped: lost says how many bytes.
func (r *ring) read(p int64, dst []byte) (n int, lost int64) {
	if p < r.start {
		lost = r.start - p
		p = r.start
	}
	for n < len(dst) && p < r.end {
		c := copy(dst[n:], r.at(p))
		n += c
		p += int64(c)
	}
	return n, lost
}

// tail returns the last n bytes, or as many as there are.
func (r *ring) tail(n int) []byte {
	out := make([]byte, min(int64(max(n, 0)), r.end-r.start))
	r.read(r.end-int64(len(out)), out)
	return out
}
