// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package qmp speaks QEMU's machine protocol over a Unix socket: commands with
// ids, replies matched by them, events in order, file descriptors on the side.
//
// It exists because the libraries at hand know neither deadlines nor command
// ids and stop answering when nobody reads their events. Here a reader
// goroutine does nothing but read: it can be held up by no caller.
//
// The package knows no command by name except the handshake. It must never
// send a command twice, never let an event delay a reply, and never go on with
// a connection on which half a command was written.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// DefaultTimeout bounds a command whose context has no deadline. QEMU
	// answers in milliseconds; only a stuck main loop takes this long.
	DefaultTimeout = 30 * time.Second
	// maxMessage bounds one line from QEMU. The longest ones known
	// (query-qmp-schema) have about 200 KB.
	maxMessage = 16 << 20
)

// ErrClosed says that the connection is over: closed by us or by QEMU. A
// command that fails with it may or may not have been carried out.
var ErrClosed = errors.New("QMP connection closed")

// Error is QEMU's refusal of a command.
type Error struct {
	Command string
	Class   string // "GenericError", "CommandNotFound", "DeviceNotFound", …
	Desc    string // for a person
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%s)", e.Command, e.Desc, e.Class) }

// HasClass reports whether err is QEMU's refusal with that class.
func HasClass(err error, class string) bool {
	var e *Error
	return errors.As(err, &e) && e.Class == class
}

// Event is something that QEMU tells unasked.
type Event struct {
	Name string
	Data json.RawMessage
	At   time.Time // QEMU's clock
}

// Version is that of QEMU, from the greeting.
type Version struct {
	Major, Minor, Micro int
	Package             string // the distributor's, may be empty
}

// String gives "7.2.22".
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Micro) }

// Options of a connection.
type Options struct {
	// OnEvent gets every event, in order, on the reader's goroutine. It must
	// not block and must not execute commands. nil drops events.
	OnEvent func(Event)
	// Timeout replaces DefaultTimeout when positive.
	Timeout time.Duration
}

// Client is a connection to one QEMU. Methods are safe for concurrent use.
type Client struct {
	conn    *net.UnixConn
	opts    Options
	version Version
	nextID  atomic.Uint64
	done    chan struct{}

	writeMu sync.Mutex // one command on the wire at a time

	mu      sync.Mutex
	pending map[string]chan message
	failure error // why the connection is over; set before done is closed
}

// message is any line from QEMU.
type message struct {
	Greeting *struct {
		Version struct {
			QEMU struct {
				Major int `json:"major"`
				Minor int `json:"minor"`
				Micro int `json:"micro"`
			} `json:"qemu"`
			Package string `json:"package"`
		} `json:"version"`
	} `json:"QMP"`
	ID     string          `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Event     string          `json:"event"`
	Data      json.RawMessage `json:"data"`
	Timestamp struct {
		Seconds      int64 `json:"seconds"`
		Microseconds int64 `json:"microseconds"`
	} `json:"timestamp"`
}

type command struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
	ID        string `json:"id"`
}

// Dial connects to the socket and negotiates. It tries once; Retryable tells
// whether the failure may pass by itself. While another client holds the
// socket QEMU sends no greeting, and Dial waits until ctx ends.
func Dial(ctx context.Context, path string, opts Options) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to QMP: %w", err)
	}
	return New(ctx, conn.(*net.UnixConn), opts)
}

// New negotiates on a connection that it takes over, also when it fails.
func New(ctx context.Context, conn *net.UnixConn, opts Options) (*Client, error) {
	if opts.Timeout <= 0 {
		opts.Timeout = DefaultTimeout
	}
	c := &Client{conn: conn, opts: opts, done: make(chan struct{}), pending: map[string]chan message{}}
	lines := bufio.NewScanner(conn)
	lines.Buffer(make([]byte, 0, 4096), maxMessage)
	lines.Split(wholeLines)
	if err := c.greet(ctx, lines); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("read QMP greeting: %w", err)
	}
	go c.read(lines)
	if err := c.Execute(ctx, "qmp_capabilities", nil, nil); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("negotiate QMP capabilities: %w", err)
	}
	return c, nil
}

// Retryable reports whether a failed Dial may succeed later: no socket yet,
// nobody listening yet, a full backlog, or a QEMU that reset the connection
// while it came up.
func Retryable(err error) bool {
	for _, target := range []error{
		syscall.ENOENT, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, syscall.EAGAIN,
		io.EOF, io.ErrUnexpectedEOF, ErrClosed,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// greet reads the greeting under ctx.
func (c *Client) greet(ctx context.Context, lines *bufio.Scanner) error {
	interrupted := interrupt(ctx, c.conn.SetReadDeadline)
	ok := lines.Scan()
	if interrupted() {
		return ctx.Err()
	}
	if !ok {
		return endOf(lines)
	}
	var m message
	if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
		return fmt.Errorf("parse %q: %w", clip(lines.Bytes()), err)
	}
	if m.Greeting == nil {
		return fmt.Errorf("not a QMP server: it said %q", clip(lines.Bytes()))
	}
	v := m.Greeting.Version
	c.version = Version{Major: v.QEMU.Major, Minor: v.QEMU.Minor, Micro: v.QEMU.Micro, Package: v.Package}
	return nil
}

// wholeLines splits like bufio.ScanLines, but a line that was cut off by the
// end of the connection is an error instead of a message.
func wholeLines(data []byte, atEOF bool) (int, []byte, error) {
	advance, token, err := bufio.ScanLines(data, false)
	if atEOF && advance == 0 && err == nil && len(data) > 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return advance, token, err
}

// interrupt makes a blocking call on the connection return when ctx ends. The
// returned function must be called after the call; it tells whether ctx ended
// and makes sure that the deadline is not touched any more.
func interrupt(ctx context.Context, setDeadline func(time.Time) error) func() bool {
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = setDeadline(time.Unix(1, 0))
		close(fired)
	})
	return func() bool {
		if stop() {
			return false
		}
		<-fired
		return true
	}
}

func endOf(lines *bufio.Scanner) error {
	if err := lines.Err(); err != nil {
		return err
	}
	return io.EOF
}

func clip(b []byte) string {
	const most = 80
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}

// Version returns what QEMU said in its greeting.
func (c *Client) Version() Version { return c.version }

// Done is closed when the connection is over.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err tells why the connection is over, nil while it is not.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}

// Close ends the connection; commands under way fail with ErrClosed.
func (c *Client) Close() error {
	c.fail(ErrClosed)
	<-c.done
	return nil
}

// fail ends the connection; the reader then closes done.
func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure == nil {
		if !errors.Is(err, ErrClosed) {
			err = fmt.Errorf("%w: %w", ErrClosed, err)
		}
		c.failure = err
		_ = c.conn.Close()
	}
}

func (c *Client) read(lines *bufio.Scanner) {
	defer close(c.done)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			c.fail(fmt.Errorf("parse %q: %w", clip(lines.Bytes()), err))
			return
		}
		switch {
		case m.Event != "":
			if c.opts.OnEvent != nil {
				at := time.Unix(m.Timestamp.Seconds, m.Timestamp.Microseconds*1000)
				c.opts.OnEvent(Event{Name: m.Event, Data: m.Data, At: at})
			}
		case m.ID != "":
			c.deliver(m)
		case m.Error != nil:
			// QEMU could not even parse what we sent; no reply can be trusted.
			c.fail(&Error{Command: "(unknown)", Class: m.Error.Class, Desc: m.Error.Desc})
			return
		}
	}
	c.fail(endOf(lines))
}

// deliver hands a reply to its caller, who may have stopped waiting.
func (c *Client) deliver(m message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch, ok := c.pending[m.ID]; ok {
		delete(c.pending, m.ID)
		ch <- m // has room for one
	}
}

// Execute runs a command and stores its return value in result (nil: not
// wanted). It returns *Error when QEMU refuses, ctx's error when ctx ends (the
// command may still be carried out) and ErrClosed when the connection is over.
func (c *Client) Execute(ctx context.Context, name string, args, result any) error {
	return c.execute(ctx, name, args, result, nil)
}

// ExecuteFile is Execute with a descriptor alongside, for getfd and add-fd.
// QEMU gets a copy; the caller closes file.
func (c *Client) ExecuteFile(ctx context.Context, name string, args, result any, file *os.File) error {
	if file == nil {
		return fmt.Errorf("%s: no file to pass", name)
	}
	return c.execute(ctx, name, args, result, file)
}

func (c *Client) execute(ctx context.Context, name string, args, result any, file *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	id := strconv.FormatUint(c.nextID.Add(1), 10)
	line, err := json.Marshal(command{Execute: name, Arguments: args, ID: id})
	if err != nil {
		return fmt.Errorf("%s: encode arguments: %w", name, err)
	}
	reply := make(chan message, 1)
	if err := c.expect(id, reply); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer c.forget(id)
	if err := c.write(ctx, append(line, '\n'), file); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	select {
	case m := <-reply:
		return decode(name, m, result)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", name, ctx.Err())
	case <-c.done:
		select { // the reply may have come just before the end
		case m := <-reply:
			return decode(name, m, result)
		default:
			return fmt.Errorf("%s: %w", name, c.Err())
		}
	}
}

func decode(name string, m message, result any) error {
	if m.Error != nil {
		return &Error{Command: name, Class: m.Error.Class, Desc: m.Error.Desc}
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(m.Return, result); err != nil {
		return fmt.Errorf("%s: parse reply: %w", name, err)
	}
	return nil
}

func (c *Client) expect(id string, reply chan message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != nil {
		return c.failure
	}
	c.pending[id] = reply
	return nil
}

func (c *Client) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

// write puts one command on the wire. When ctx ends in the middle of it the
// stream is broken, so the connection is given up.
func (c *Client) write(ctx context.Context, line []byte, file *os.File) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	_ = c.conn.SetWriteDeadline(time.Time{})
	interrupted := interrupt(ctx, c.conn.SetWriteDeadline)
	err := c.send(line, file)
	late := interrupted()
	if err == nil {
		return nil
	}
	c.fail(err)
	if late {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", ErrClosed, err)
}

func (c *Client) send(line []byte, file *os.File) error {
	if file == nil {
		_, err := c.conn.Write(line)
		return err
	}
	n, _, err := c.conn.WriteMsgUnix(line, syscall.UnixRights(int(file.Fd())), nil)
	if err == nil && n < len(line) {
		_, err = c.conn.Write(line[n:])
	}
	return err
}
