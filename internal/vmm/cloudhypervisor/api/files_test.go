// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/cloudhypervisor/api"
)

// received is a request with what came beside it.
type received struct {
	request *http.Request
	body    api.Net
	fds     []int
	err     error
}

// receiver takes one connection and answers it with the text; an empty one keeps the client waiting.
func receiver(t *testing.T, answer string) (socket string, got <-chan received) {
	t.Helper()
	dir, err := os.MkdirTemp("", "api")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c := make(chan received, 1)
	go func() {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer conn.Close()
		r := receiveRequest(conn)
		c <- r
		if answer == "" {
			_, _ = io.Copy(io.Discard, conn)
		}
		_, _ = io.WriteString(conn, answer)
	}()
	return socket, c
}

// receiveRequest takes descriptors with the first message alone, as the server does with the one that begins a request.
func receiveRequest(conn *net.UnixConn) (r received) {
	text, beside := make([]byte, 64<<10), make([]byte, 1<<10)
	n, oobn, _, _, err := conn.ReadMsgUnix(text, beside)
	if err != nil {
		return received{err: err}
	}
	messages, err := syscall.ParseSocketControlMessage(beside[:oobn])
	if err != nil {
		return received{err: err}
	}
	for _, m := range messages {
		if r.fds, r.err = syscall.ParseUnixRights(&m); r.err != nil {
			return r
		}
	}
	if r.request, r.err = http.ReadRequest(bufio.NewReader(io.MultiReader(bytes.NewReader(text[:n]), conn))); r.err == nil {
		r.err = json.NewDecoder(r.request.Body).Decode(&r.body)
	}
	return r
}

func client(t *testing.T, o api.Options) *api.Client {
	t.Helper()
	c, err := api.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func pipes(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func TestDescriptorsGoBesideTheFirstMessageOfARequest(t *testing.T) {
	socket, got := receiver(t, "HTTP/1.1 200 \r\nContent-Length: 31\r\n\r\n"+`{"id":"n","bdf":"0000:00:04.0"}`)
	r, w := pipes(t)
	d, err := client(t, api.Options{Socket: socket}).AddNet(t.Context(), api.Net{ID: "n", NumQueues: 4}, r, w)
	if err != nil || d.BDF != "0000:00:04.0" {
		t.Errorf("answer %+v, error %v", d, err)
	}
	g := <-got
	if g.err != nil {
		t.Fatal(g.err)
	}
	if q := g.request; q.Method != http.MethodPut || q.URL.Path != "/api/v1/vm.add-net" || q.ContentLength <= 0 || q.TransferEncoding != nil {
		t.Errorf("request %s %s of %d bytes, encoded %v", q.Method, q.URL, q.ContentLength, q.TransferEncoding)
	}
	if g.body.ID != "n" || g.body.FDs != nil || len(g.fds) != 2 {
		t.Fatalf("body %+v, descriptors %v", g.body, g.fds)
	}
	// They are the same files: what is written to one is read from the other.
	if _, err := syscall.Write(g.fds[1], []byte("x")); err != nil {
		t.Error(err)
	}
	for _, fd := range g.fds {
		syscall.Close(fd)
	}
	if n, err := r.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("read %d bytes, error %v", n, err)
	}
}

func TestARefusalAndALostAnswerWithDescriptorsAreToldApart(t *testing.T) {
	r, _ := pipes(t)
	refusal := `["Error from API","The network device could not be added to the VM","Failed to validate config","Identifier n is not unique"]`
	socket, _ := receiver(t, "HTTP/1.1 500 \r\nContent-Length: "+strconv.Itoa(len(refusal))+"\r\n\r\n"+refusal)
	if _, err := client(t, api.Options{Socket: socket}).AddNet(t.Context(), api.Net{ID: "n"}, r); !errors.Is(err, api.ErrDuplicateID) {
		t.Errorf("error is %v, want ErrDuplicateID", err)
	}
	socket, _ = receiver(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := client(t, api.Options{Socket: socket}).AddNet(ctx, api.Net{ID: "n"}, r)
	if !errors.Is(err, api.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v, want ErrUnavailable and the context's", err)
	}
	pipe := func(context.Context, string) (net.Conn, error) {
		a, b := net.Pipe()
		b.Close()
		return a, nil
	}
	if _, err := client(t, api.Options{Socket: "s", Dial: pipe}).AddNet(t.Context(), api.Net{ID: "n"}, r); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("error is %v, want ErrUnavailable", err)
	}
}
