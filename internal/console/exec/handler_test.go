// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/console"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

func answerTo(t *testing.T, method, target string, body io.Reader, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequest(method, target, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer
}

func TestWhatCannotBeServedIsRefusedAndKeepsTheToken(t *testing.T) {
	h := newHub(t)
	s := start(t, Options{Attacher: h})
	newSerial(t, h).say("hello\n")
	target := urlOf(t, s)
	unknown := target[:len(target)-1] + "1" // no letter of base32
	spdyHeaders := []string{"Connection", "Upgrade", "Upgrade", "SPDY/3.1"}
	wsHeaders := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}
	for name, tc := range map[string]struct {
		method, target string
		body           io.Reader
		headers        []string
		want           int
	}{
		"an unknown token":             {"GET", unknown, nil, nil, 404},
		"an unknown token by HEAD":     {"HEAD", unknown, nil, nil, 404},
		"an unknown token, upgrading":  {"POST", unknown, nil, append(spdyHeaders, "X-Stream-Protocol-Version", "v4.channel.k8s.io"), 404},
		"no token":                     {"GET", strings.TrimSuffix(target, filepath.Base(target)), nil, nil, 404},
		"more behind the token":        {"GET", target + "/x", nil, nil, 404},
		"another path":                 {"GET", strings.Replace(target, "/exec/", "/attach/", 1), nil, nil, 404},
		"DELETE":                       {"DELETE", target, nil, nil, 405},
		"PUT":                          {"PUT", target, nil, nil, 405},
		"OPTIONS":                      {"OPTIONS", target, nil, nil, 405},
		"no upgrade":                   {"GET", target, nil, nil, 400},
		"HEAD":                         {"HEAD", target, nil, nil, 400},
		"another upgrade":              {"GET", target, nil, []string{"Connection", "Upgrade", "Upgrade", "h2c"}, 400},
		"a body":                       {"POST", target, strings.NewReader("x"), nil, 413},
		"SPDY without protocols":       {"POST", target, nil, spdyHeaders, 400},
		"SPDY with unknown protocols":  {"POST", target, nil, append(spdyHeaders, "X-Stream-Protocol-Version", "v9.channel.k8s.io"), 403},
		"WebSocket, unknown protocols": {"GET", target, nil, append(wsHeaders, "Sec-WebSocket-Protocol", "v9.channel.k8s.io, chat"), 403},
		"WebSocket by POST":            {"POST", target, nil, wsHeaders, 405},
		"WebSocket of an old version":  {"GET", target, nil, append(wsHeaders, "Sec-WebSocket-Version", "8"), 426},
		"WebSocket without a key":      {"GET", target, nil, append(wsHeaders, "Sec-WebSocket-Key", "x"), 400},
	} {
		t.Run(name, func(t *testing.T) {
			if got := answerTo(t, tc.method, tc.target, tc.body, tc.headers...); got.StatusCode != tc.want {
				t.Errorf("answer %s, want %d", got.Status, tc.want)
			}
		})
	}
	c := dialSPDY(t, "POST", target, "v4.channel.k8s.io")
	c.sees("hello\n")
	if got := answerTo(t, "GET", target, nil); got.StatusCode != 404 {
		t.Errorf("a used token: %s", got.Status)
	}
}

func TestTheBestCommonProtocolOfTheClientsOrderIsTaken(t *testing.T) {
	s := start(t, Options{Attacher: newHub(t)})
	_, answer := dialWS(t, urlOf(t, s), "v9.channel.k8s.io, v4.channel.k8s.io,v5.channel.k8s.io")
	if got := answer.Header.Get("Sec-WebSocket-Protocol"); got != "v4.channel.k8s.io" {
		t.Errorf("protocol %q", got)
	}
}

func TestAnyHostAndOriginAreServed(t *testing.T) { // the token alone decides
	s := start(t, Options{Attacher: newHub(t)})
	if _, answer := dialWS(t, urlOf(t, s), "v5.channel.k8s.io", "Origin: https://console.example"); answer.StatusCode != 101 {
		t.Error(answer.Status)
	}
}

func TestTheBaseURLMayHaveAPathAndASlash(t *testing.T) {
	for base, want := range map[string]string{
		"http://node.example":               "http://node.example/exec/",
		"http://node.example/":              "http://node.example/exec/",
		"https://node.example:1/chp/a":      "https://node.example:1/chp/a/exec/",
		"https://node.example:1/chp/a//":    "https://node.example:1/chp/a/exec/",
		"https://node.example:1/with%2Fone": "https://node.example:1/with%2Fone/exec/",
	} {
		t.Run(base, func(t *testing.T) {
			s := start(t, Options{Attacher: newHub(t), BaseURL: base})
			u := urlOf(t, s)
			if !strings.HasPrefix(u, want) {
				t.Errorf("URL %q, want %q and a token", u, want)
			}
			for _, path := range []string{strings.SplitN(u, "/", 4)[3], "exec/" + filepath.Base(u)} { // as it is, and cut by a proxy
				r, _ := http.NewRequest("GET", "http://x/"+path, nil)
				if token, ok := s.tokenIn(r.URL.Path); !ok || !s.tokens.Known(token) {
					t.Errorf("no token in %q", path)
				}
			}
		})
	}
}

func TestTheURLOfAllAddressesNamesLoopback(t *testing.T) {
	for address, want := range map[string]string{"0.0.0.0:0": "http://127.0.0.1:", "localhost:0": "http://localhost:"} {
		s := start(t, Options{Attacher: newHub(t), Address: address})
		if u := urlOf(t, s); !strings.HasPrefix(u, want) {
			t.Errorf("%s: URL %q", address, u)
		}
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	h := newHub(t)
	for name, o := range map[string]Options{
		"every interface by omission": {Attacher: h, Address: ":20251"},
		"no port":                     {Attacher: h, Address: "127.0.0.1"},
		"a base URL without host":     {Attacher: h, BaseURL: "http:///x"},
		"a base URL of another kind":  {Attacher: h, BaseURL: "ftp://x"},
		"a base URL with a query":     {Attacher: h, BaseURL: "http://x?y"},
		"a certificate alone":         {Attacher: h, TLSCertFile: "x"},
		"a negative interval":         {Attacher: h, KeepAlive: -1},
	} {
		if _, err := New(o); !machine.IsKind(err, machine.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(Options{}); err == nil {
		t.Error("no attacher is needed")
	}
	if _, err := New(Options{Attacher: h, TLSCertFile: "/nowhere", TLSKeyFile: "/nowhere"}); err == nil {
		t.Error("no certificate is needed")
	}
}

// writeCertificate makes a certificate for 127.0.0.1 with a serial number.
func writeCertificate(t *testing.T, dir string, serial int64) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		when := time.Unix(serial, 0)
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func TestTLSAndANewCertificate(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := writeCertificate(t, dir, 1)
	h := newHub(t)
	s := start(t, Options{Attacher: h, TLSCertFile: certFile, TLSKeyFile: keyFile})
	guest := newSerial(t, h)
	u := urlOf(t, s)
	address, ok := strings.CutPrefix(u, "https://")
	if !ok {
		t.Fatalf("URL %q", u)
	}
	address, path, _ := strings.Cut(address, "/")
	shown := func() int64 {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if got := shown(); got != 1 {
		t.Errorf("certificate %d", got)
	}
	if err := os.WriteFile(certFile, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := shown(); got != 1 {
		t.Errorf("certificate %d after a bad one", got)
	}
	writeCertificate(t, dir, 2)
	if got := shown(); got != 2 {
		t.Errorf("certificate %d after the second", got)
	}
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /"+path+" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	guest.say("over TLS\n")
	var seen strings.Builder
	for buf := make([]byte, 1024); !strings.Contains(seen.String(), "over TLS"); {
		n, err := conn.Read(buf)
		seen.Write(buf[:n])
		if err != nil {
			t.Fatalf("%v after %q", err, seen.String())
		}
	}
}

func TestATakenPortIsTriedAgainAndSaysWhyMeanwhile(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := New(Options{Attacher: newHub(t), Address: l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "it says why", func() bool {
		_, err := s.URL(guestID)
		return machine.IsKind(err, machine.Unavailable) && strings.Contains(err.Error(), "in use")
	})
	_ = l.Close()
	eventually(t, "it listens", func() bool { _, err := s.URL(guestID); return err == nil })
}

func TestNoMoreSessionsThanThereIsRoomForAndTheTokenIsKept(t *testing.T) {
	h := newHub(t)
	s := start(t, Options{Attacher: h})
	newSerial(t, h).say("hello\n")
	for range MaxSessions {
		s.room <- struct{}{}
	}
	target := urlOf(t, s)
	if _, answer := dialWS(t, target, "v5.channel.k8s.io"); answer.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("answer %s", answer.Status)
	}
	for range MaxSessions {
		<-s.room
	}
	attachWS(t, target, "v5.channel.k8s.io").sees("hello\n")
}

var _ Attacher = attacher(func(context.Context, console.AttachOptions, io.ReadWriteCloser) error { return nil })
