// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package web_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/observe/web"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// serve runs a server on a free port until the test ends.
func serve(t *testing.T, o web.Options) string {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	opened := make(chan string, 1)
	ended := make(chan error, 1)
	o.Name, o.Opened = "test", func(a net.Addr) { opened <- a.String() }
	if o.Address == "" {
		o.Address = "127.0.0.1:0"
	}
	go func() { ended <- web.Serve(ctx, o) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("the server does not end")
		}
	})
	select {
	case address := <-opened:
		return address
	case <-time.After(patience):
		t.Fatal("the server does not open its port")
		return ""
	}
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })

// ask makes a request on a connection of its own.
func ask(address string) error {
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != "ok" {
		return errors.Join(err, errors.New("answer "+string(body)))
	}
	return nil
}

func TestSlowClientsMakeRoomForThoseWhoAsk(t *testing.T) {
	address := serve(t, web.Options{Handler: ok, MaxConnections: 8})
	for i := range 40 { // silent ones, and ones that send a byte
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 0 {
			_, _ = io.WriteString(conn, "G")
		}
	}
	for range 20 {
		if err := ask(address); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheOldestSilentConnectionIsEnded(t *testing.T) {
	address := serve(t, web.Options{Handler: ok, MaxConnections: 2})
	first, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	for range 2 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	_ = first.SetReadDeadline(time.Now().Add(patience))
	var timeout net.Error
	if _, err := first.Read(make([]byte, 1)); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("it is still open: %v", err)
	}
}

func TestARequestUnderWayIsNotEndedForOthers(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	var slow atomic.Bool
	slow.Store(true)
	address := serve(t, web.Options{MaxConnections: 2, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slow.Swap(false) {
			close(entered)
			<-release
		}
		ok(w, r)
	})})
	result := make(chan error, 1)
	go func() { result <- ask(address) }()
	<-entered
	for range 10 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if err := ask(address); err != nil {
		t.Errorf("another one: %v", err)
	}
	close(release)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestAPortThatIsTakenIsWaitedFor(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tries := 0
	address := serve(t, web.Options{
		Handler: ok, Address: taken.Addr().String(), Retry: time.Millisecond,
		Listen: func(ctx context.Context, address string) (net.Listener, error) {
			if tries++; tries == 3 {
				_ = taken.Close()
			}
			return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		},
	})
	if err := ask(address); err != nil {
		t.Error(err)
	}
	if tries < 3 {
		t.Errorf("open at try %d", tries)
	}
}

func TestBothFamiliesAreServedWhenThePortAloneIsNamed(t *testing.T) {
	address := serve(t, web.Options{Handler: ok, Address: ":0"})
	_, port, _ := net.SplitHostPort(address)
	hosts := []string{"127.0.0.1"}
	if probe, err := net.Listen("tcp", "[::1]:0"); err == nil {
		_ = probe.Close()
		hosts = append(hosts, "::1")
	} else {
		t.Log("this host has no IPv6: only IPv4 is tried")
	}
	for _, host := range hosts {
		if err := ask(net.JoinHostPort(host, port)); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
}

func TestLargeHeadersAreRefused(t *testing.T) {
	address := serve(t, web.Options{Handler: ok})
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, nil)
	req.Header.Set("X", strings.Repeat("x", 64<<10))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return // the server may close before all is sent
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("answer %d", res.StatusCode)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]web.Options{
		"no address": {Handler: ok}, "no handler": {Address: ":0"}, "a negative bound": {Address: ":0", Handler: ok, MaxConnections: -1},
	} {
		if web.Serve(t.Context(), o) == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
