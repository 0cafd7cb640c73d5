// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for something that should happen at once.
const patience = 30 * time.Second

// fakeBinary is built once for the package.
var fakeBinary string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

// runTests uses the binary named by FAKECH_BINARY, one built with -race for example, or builds one.
func runTests(m *testing.M) int {
	if fakeBinary = os.Getenv("FAKECH_BINARY"); fakeBinary != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "fakech")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if fakeBinary, err = Build(ctx, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// subject is one binary under test.
type subject struct {
	name string
	bin  string
	d    dialect
	real bool
}

func fakes() []subject {
	return []subject{
		{"fake v52", fakeBinary, dialect52, false},
		{"fake v53", fakeBinary, dialect53, false},
		{"fake main", fakeBinary, dialect54, false},
	}
}

// realSubject finds a real binary; its version decides the dialect.
func realSubject(t *testing.T) (subject, bool) {
	t.Helper()
	bin := os.Getenv("CLOUD_HYPERVISOR")
	if bin == "" {
		found, err := exec.LookPath("cloud-hypervisor")
		if err != nil {
			return subject{}, false
		}
		bin = found
	}
	out, err := exec.Command(bin, "--version").Output()
	if err != nil {
		t.Fatalf("run %s --version: %v", bin, err)
	}
	version := regexp.MustCompile(`v\d+\.\d+`).FindString(string(out))
	d, err := parseVersion(version)
	if err != nil {
		t.Fatalf("%s: %v", bin, err)
	}
	return subject{"real " + version, bin, d, true}, true
}

// env is one running VMM with a directory of its own.
type env struct {
	t   *testing.T
	s   subject
	dir string
	api string

	cmd    *exec.Cmd
	exited chan struct{}
	stderr bytes.Buffer
	script Script
}

func newEnv(t *testing.T, s subject) *env {
	t.Helper()
	// Socket paths are short; the directory of t.TempDir is not.
	dir, err := os.MkdirTemp("", "ch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	e := &env{t: t, s: s, dir: dir, api: filepath.Join(dir, "api")}
	// The guest of the transcripts: what the real tiny guest does.
	e.script = Script{
		Version: fmt.Sprint(int(s.d)), BootText: ptr(tinyText), SerialCommands: true, Control: true,
		PowerButton: "ignore", Eject: "hold", NoVsock: true, CheckKernel: true, CheckTapFDs: true, VhostUserTimeoutMS: 50,
	}
	return e
}

func (e *env) path(name string) string { return filepath.Join(e.dir, name) }

// start runs the binary and waits until its API socket answers connections.
func (e *env) start(args ...string) {
	e.t.Helper()
	e.spawn(append([]string{"--api-socket", e.api, "--event-monitor", "path=" + e.path("events"), "--log-file", e.path("log")}, args...)...)
	e.until("the API socket answers", func() bool {
		select {
		case <-e.exited:
			e.t.Fatalf("process ended: %s", e.stderr.String())
		default:
		}
		c, err := net.Dial("unix", e.api)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

// command prepares a run of the binary under the script, killed when the test is out of patience.
func (e *env) command(args ...string) *exec.Cmd {
	e.t.Helper()
	script := e.path("script.json")
	if err := e.script.WriteFile(script); err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	e.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, e.s.bin, args...)
	cmd.Env = append(os.Environ(), ScriptEnv+"="+script)
	return cmd
}

func (e *env) spawn(args ...string) {
	e.t.Helper()
	e.cmd = e.command(args...)
	e.cmd.Stderr = &e.stderr
	if err := e.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.exited = make(chan struct{})
	cmd, exited := e.cmd, e.exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	e.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
	})
}

func (e *env) until(what string, ok func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Fatalf("it did not come true in %v that %s\nstderr: %s", patience, what, e.stderr.String())
		}
	}
}

// ends waits for the process and checks its exit code; a negative code is a signal.
func (e *env) ends(code int) {
	e.t.Helper()
	select {
	case <-e.exited:
	case <-time.After(patience):
		e.t.Fatalf("process still runs after %v", patience)
	}
	got := e.cmd.ProcessState.ExitCode()
	if ws, ok := e.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		got = -int(ws.Signal())
	}
	if got != code {
		e.t.Errorf("exit code %d, want %d; stderr: %s", got, code, e.stderr.String())
	}
}

// answer is a response, or the error that came instead.
type answer struct {
	e      *env
	what   string
	status int
	header http.Header
	body   string
	err    error
}

func (e *env) raw(what, text string) answer {
	e.t.Helper()
	c, err := net.Dial("unix", e.api)
	if err != nil {
		return answer{e: e, what: what, err: err}
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	// A server that is full answers and closes before it has read anything: the answer counts.
	_, _ = io.WriteString(c, text)
	return e.read(what, bufio.NewReader(c))
}

func (e *env) read(what string, r *bufio.Reader) answer {
	a := answer{e: e, what: what}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		a.err = err
		return a
	}
	defer resp.Body.Close()
	a.status, a.header = resp.StatusCode, resp.Header
	b, err := io.ReadAll(resp.Body)
	a.body, a.err = string(b), err
	return a
}

// do sends one request; body may be nil, a string (sent as it is) or something to encode.
func (e *env) do(method, endpoint string, body any) answer {
	e.t.Helper()
	head := method + " /api/v1/" + endpoint + " HTTP/1.1\r\nHost: localhost\r\n"
	if body == nil {
		return e.raw(method+" "+endpoint, head+"\r\n")
	}
	text, ok := body.(string)
	if !ok {
		b, err := json.Marshal(body)
		if err != nil {
			e.t.Fatal(err)
		}
		text = string(b)
	}
	return e.raw(method+" "+endpoint+" "+text, fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(text), text))
}

func (e *env) get(endpoint string) answer { e.t.Helper(); return e.do("GET", endpoint, nil) }

func (e *env) put(endpoint string, body ...any) answer {
	e.t.Helper()
	if len(body) == 0 {
		return e.do("PUT", endpoint, nil)
	}
	return e.do("PUT", endpoint, body[0])
}

// is checks status and, unless empty, the exact body.
func (a answer) is(status int, body string) answer {
	a.e.t.Helper()
	if a.err != nil {
		a.e.t.Fatalf("%s: %v", a.what, a.err)
	}
	if a.status != status || body != "" && a.body != body {
		a.e.t.Errorf("%s\n got: %d %s\nwant: %d %s", a.what, a.status, a.body, status, body)
	}
	return a
}

// done is the 204 of most calls.
func (a answer) done() answer {
	a.e.t.Helper()
	if a.is(204, ""); a.body != "" || a.header.Get("Content-Length") != "" || a.header.Get("Content-Type") != "" {
		a.e.t.Errorf("%s: 204 with %q and headers %v", a.what, a.body, a.header)
	}
	return a
}

// fails checks the error chain; the status follows from kind and version.
func (a answer) fails(kind errKind, texts ...string) {
	a.e.t.Helper()
	a.is(a.e.s.d.status(failedAs(kind, "")), string(errorBody(append([]string{"Error from API"}, texts...)...)))
}

// syntax checks a JSON error.
func (a answer) syntax(text string) {
	a.e.t.Helper()
	a.is(400, string(errorBody("Failed to deserialize JSON", text)))
}

// lost checks that the connection ended without an answer.
func (a answer) lost() {
	a.e.t.Helper()
	if a.err == nil {
		a.e.t.Errorf("%s: answered %d %s, want none", a.what, a.status, a.body)
	}
}

// info is vm.info, decoded.
type info struct {
	Config map[string]any `json:"config"`
	State  string         `json:"state"`
	Actual uint64         `json:"memory_actual_size"`
	Tree   map[string]struct {
		ID       string   `json:"id"`
		Parent   string   `json:"parent"`
		Children []string `json:"children"`
		BDF      string   `json:"pci_bdf"`
	} `json:"device_tree"`
}

func (e *env) info() info {
	e.t.Helper()
	var i info
	if err := json.Unmarshal([]byte(e.get("vm.info").is(200, "").body), &i); err != nil {
		e.t.Fatal(err)
	}
	return i
}

func (e *env) state(want string) {
	e.t.Helper()
	if got := e.info().State; got != want {
		e.t.Errorf("state %q, want %q", got, want)
	}
}

func (e *env) count(list string) int {
	e.t.Helper()
	items, _ := e.info().Config[list].([]any)
	return len(items)
}

// events returns the event stream as "source event key=value".
func (e *env) events() []string {
	e.t.Helper()
	f, err := os.Open(e.path("events"))
	if err != nil {
		e.t.Fatal(err)
	}
	defer f.Close()
	var list []string
	for dec := json.NewDecoder(f); ; {
		var ev event
		if err := dec.Decode(&ev); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return list
		} else if err != nil {
			e.t.Fatal(err)
		}
		text := ev.Source + " " + ev.Event
		for _, k := range []string{"id", "bdf", "event"} {
			if v, ok := ev.Properties[k]; ok {
				text += " " + k + "=" + v
			}
		}
		// The tiny guest has no drivers, but the firmware of a real one might.
		if ev.Source != "virtio-device" {
			list = append(list, text)
		}
	}
}

// sequence waits for exactly these events since the start.
func (e *env) sequence(want ...string) {
	e.t.Helper()
	var got []string
	for deadline := time.Now().Add(patience / 6); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if got = e.events(); slices.Equal(got, want) {
			return
		}
	}
	e.t.Errorf("events\n got: %s\nwant: %s", strings.Join(got, ", "), strings.Join(want, ", "))
}

// exists checks which of the files are there.
func (e *env) exists(want bool, names ...string) {
	e.t.Helper()
	for _, name := range names {
		if _, err := os.Lstat(e.path(name)); (err == nil) != want {
			e.t.Errorf("file %s: %v, want it there: %v", name, err, want)
		}
	}
}

func (e *env) file(name string, size int64) string {
	e.t.Helper()
	if err := os.WriteFile(e.path(name), nil, 0o600); err != nil {
		e.t.Fatal(err)
	}
	if err := os.Truncate(e.path(name), size); err != nil {
		e.t.Fatal(err)
	}
	return e.path(name)
}

// attach connects to the serial socket.
func (e *env) attach() *line {
	e.t.Helper()
	var c net.Conn
	e.until("the serial socket answers", func() bool {
		var err error
		c, err = net.Dial("unix", e.path("serial"))
		return err == nil
	})
	e.t.Cleanup(func() { c.Close() })
	return &line{e: e, c: c}
}

// line is a client of the serial socket.
type line struct {
	e *env
	c net.Conn
}

func (l *line) shows(want string) {
	l.e.t.Helper()
	_ = l.c.SetReadDeadline(time.Now().Add(patience))
	var got []byte
	for b := make([]byte, 4096); !strings.Contains(string(got), want); {
		n, err := l.c.Read(b)
		got = append(got, b[:n]...)
		if err != nil {
			l.e.t.Fatalf("serial showed %q and %v, want %q", got, err, want)
		}
	}
}

// booted waits for the boot text. Before v53 what was printed before the client came is lost.
func (l *line) booted() {
	l.e.t.Helper()
	if l.e.s.d >= dialect53 {
		l.shows(tinyText)
	}
}

func (l *line) types(text string) {
	l.e.t.Helper()
	if _, err := io.WriteString(l.c, text); err != nil {
		l.e.t.Fatal(err)
	}
}

func (l *line) closes() {
	l.e.t.Helper()
	_ = l.c.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, l.c); errors.Is(err, os.ErrDeadlineExceeded) {
		l.e.t.Fatal("serial client was not disconnected")
	}
}

func (e *env) control() Control { return ControlFor(e.api) }

func (e *env) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
