// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// lineLimit is the size of the server's read buffer, and so of each line.
const lineLimit = 1024

// parseError is a malformed request, in the words the client gets to read.
type parseError string

func (e parseError) Error() string { return string(e) }

// request is one parsed HTTP request.
type request struct {
	method, uri string
	body        []byte // nil without a body
	fds         []int
}

// path returns the part of the URI that is looked up; the query belongs to it.
func (r *request) path() string {
	if rest, ok := strings.CutPrefix(r.uri, "http://"); ok {
		if i := strings.IndexByte(rest, '/'); i >= 0 {
			return rest[i:]
		}
		return ""
	}
	if strings.HasPrefix(r.uri, "/") {
		return r.uri
	}
	return ""
}

type parseState int

const (
	inRequestLine parseState = iota
	inHeaders
	inBody
)

// parser is the server's state machine: it is fed what one read returned and gives whole requests. A
// malformed byte drops everything that was read and not yet answered.
type parser struct {
	limit int // of the body, bytes

	state   parseState
	buf     []byte
	cur     request
	length  int
	expect  bool
	pending []int // descriptors received and not yet given to a request
}

// feed parses data. proceed is the number of "100 Continue" answers owed.
func (p *parser) feed(data []byte) (reqs []*request, proceed int, err error) {
	p.buf = append(p.buf, data...)
	for {
		if p.state == inBody {
			if len(p.buf) < p.length {
				return reqs, proceed, nil
			}
			p.cur.body = bytes.Clone(p.buf[:p.length])
			p.buf = p.buf[p.length:]
			reqs = append(reqs, p.finish())
			continue
		}
		i := bytes.Index(p.buf, []byte("\r\n"))
		if i < 0 || i+2 > lineLimit {
			if len(p.buf) >= lineLimit {
				return nil, 0, p.tooLong()
			}
			return reqs, proceed, nil
		}
		line := string(p.buf[:i])
		p.buf = p.buf[i+2:]
		switch {
		case p.state == inRequestLine:
			err = p.requestLine(line)
		case line == "":
			var done bool
			done, err = p.endHeaders()
			if done && err == nil {
				reqs = append(reqs, p.finish())
			}
			if !done && err == nil && p.expect {
				proceed++
			}
		default:
			err = p.header(line)
		}
		if err != nil {
			p.reset()
			return nil, 0, err
		}
	}
}

func (p *parser) reset() {
	limit := p.limit
	closeFDs(p.pending)
	*p = parser{limit: limit}
}

func (p *parser) tooLong() error {
	text := "Invalid request."
	if p.state == inHeaders {
		text = "Invalid header. Reason: Invalid content length. Header: " + string(p.buf[:lineLimit])
	}
	p.reset()
	return parseError(text)
}

func (p *parser) finish() *request {
	r := p.cur
	r.fds, p.pending = p.pending, nil
	p.cur, p.length, p.expect, p.state = request{}, 0, false, inRequestLine
	return &r
}

func (p *parser) requestLine(line string) error {
	method, rest, ok := strings.Cut(line, " ")
	uri, version, ok2 := strings.Cut(rest, " ")
	switch {
	case !ok || !ok2:
		return parseError("Invalid request.")
	case method != "GET" && method != "PUT" && method != "PATCH" && method != "DELETE":
		return parseError("Invalid HTTP Method: Unsupported HTTP method.")
	case uri == "":
		return parseError("Invalid URI: Empty URI not allowed.")
	case !utf8.ValidString(uri):
		return parseError("Invalid URI: Cannot parse URI as UTF-8.")
	case version != "HTTP/1.0" && version != "HTTP/1.1":
		return parseError("Invalid HTTP Version: Unsupported HTTP version.")
	}
	p.cur = request{method: method, uri: uri}
	p.state = inHeaders
	return nil
}

func (p *parser) header(line string) error {
	key, value, ok := strings.Cut(line, ":")
	if !ok {
		return parseError("Invalid header. Reason: Header is incorrectly formatted. Key: " + line)
	}
	switch strings.ToLower(strings.TrimSpace(key)) {
	case "content-length":
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
		if err != nil {
			return parseError("Invalid header. Reason: Invalid value. Key:" + key + "; Value:" + value)
		}
		p.length = int(n)
	case "expect":
		p.expect = p.expect || strings.TrimSpace(value) == "100-continue"
	}
	return nil
}

// endHeaders reports whether the request is complete without a body. Chunked bodies are unknown: the
// request counts as one without a body and the first chunk as a malformed next request.
func (p *parser) endHeaders() (bool, error) {
	if p.length == 0 {
		return true, nil
	}
	if p.length > p.limit {
		return false, parseError(fmt.Sprintf(
			"Request payload with size %d is larger than the limit of %d allowed by server.", p.length, p.limit))
	}
	p.state = inBody
	return false, nil
}
