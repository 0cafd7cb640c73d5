// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"crypto/sha1"
	"encoding/base64"
	"net/http"
	"strings"
	"time"

	"k8s.io/streaming/pkg/httpstream"
)

// wsProtocol is how the channels of a console share a WebSocket.
type wsProtocol struct {
	name    string
	version int  // decides the form of the ending
	text    bool // channels are digits and payloads base64
}

// wsProtocols are all that are spoken. A client that names none gets the oldest.
var wsProtocols = []wsProtocol{
	{name: "v5.channel.k8s.io", version: 5},
	{name: "v4.channel.k8s.io", version: 4},
	{name: "v4.base64.channel.k8s.io", version: 4, text: true},
	{name: "channel.k8s.io", version: 1},
	{name: "base64.channel.k8s.io", version: 1, text: true},
	{name: "", version: 1},
}

// Channels are numbered by the first byte of each message.
const (
	channelStdin  = 0
	channelStdout = 1
	channelError  = 3
	// channelClose is version 5's: the message's second byte is a channel on which no more will come.
	channelClose = 255
)

// wsAccept is what RFC 6455 wants hashed with the client's key.
const wsAccept = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

func isWebSocket(r *http.Request) bool {
	return httpstream.IsUpgradeRequest(r) && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// negotiateWebSocket answers requests that cannot be served with an error and returns false.
func negotiateWebSocket(w http.ResponseWriter, r *http.Request) (wsProtocol, bool) {
	key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-WebSocket-Key"))
	switch {
	case r.Method != http.MethodGet:
		http.Error(w, "a WebSocket is opened with GET", http.StatusMethodNotAllowed)
		return wsProtocol{}, false
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		w.Header().Set("Sec-WebSocket-Version", "13")
		http.Error(w, "only version 13 of the WebSocket protocol is spoken here", http.StatusUpgradeRequired)
		return wsProtocol{}, false
	case err != nil || len(key) != 16:
		http.Error(w, "Sec-WebSocket-Key must be 16 bytes in base64", http.StatusBadRequest)
		return wsProtocol{}, false
	}
	var asked []string
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for name := range strings.SplitSeq(line, ",") {
			asked = append(asked, strings.TrimSpace(name))
		}
	}
	if len(asked) == 0 {
		asked = []string{""}
	}
	for _, name := range asked {
		for _, p := range wsProtocols {
			if p.name == name {
				return p, true
			}
		}
	}
	http.Error(w, "none of the WebSocket protocols asked for is spoken here", http.StatusForbidden)
	return wsProtocol{}, false
}

// wsTransport is a client with numbered channels in the messages of one WebSocket.
type wsTransport struct {
	protocol wsProtocol
	conn     *liveConn
	frames   *frames
	input    chan []byte
	lost     chan bool     // closed when nothing more comes from the client
	done     chan struct{} // closed by cut
}

func upgradeWebSocket(w http.ResponseWriter, r *http.Request, p wsProtocol, keepAlive time.Duration) (*wsTransport, error) {
	h := w.Header()
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + wsAccept))
	h.Set("Connection", "Upgrade")
	h.Set("Upgrade", "websocket")
	h.Set("Sec-WebSocket-Accept", base64.StdEncoding.EncodeToString(sum[:]))
	if p.name != "" {
		h.Set("Sec-WebSocket-Protocol", p.name)
	}
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, err := hijack(w, keepAlive)
	if err != nil {
		return nil, err
	}
	t := &wsTransport{
		protocol: p, conn: conn, frames: &frames{rw: conn}, input: make(chan []byte), lost: make(chan bool),
		done: make(chan struct{}),
	}
	go t.read()
	go t.ping(keepAlive)
	return t, nil
}

func (t *wsTransport) ping(interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if t.frames.write(opPing) != nil {
				return
			}
		case <-t.done:
			return
		}
	}
}

// read takes messages apart until the client is gone. What it typed before it left is still passed on.
func (t *wsTransport) read() {
	typing := true
	defer func() {
		close(t.lost)
		if typing {
			close(t.input)
		}
	}()
	for {
		message, err := t.frames.read()
		if err != nil {
			return
		}
		if len(message) == 0 {
			continue
		}
		channel, payload := message[0], message[1:]
		if t.protocol.text {
			channel -= '0'
			decoded, err := base64.StdEncoding.DecodeString(string(payload))
			if err != nil {
				continue
			}
			payload = decoded
		}
		switch {
		case channel == channelClose && t.protocol.version >= 5 && typing && len(payload) == 1 && payload[0] == channelStdin:
			close(t.input)
			typing = false
		case channel == channelStdin && typing:
			select {
			case t.input <- payload:
			case <-t.done:
				return
			}
		}
	}
}

func (t *wsTransport) typed() <-chan []byte { return t.input }
func (t *wsTransport) gone() <-chan bool    { return t.lost }
func (t *wsTransport) hurry()               { t.conn.hurry() }

func (t *wsTransport) Write(p []byte) (int, error) { return t.send(channelStdout, p) }

func (t *wsTransport) send(channel byte, p []byte) (int, error) {
	op := byte(opBinary)
	payload := p
	if t.protocol.text {
		op, channel, payload = opText, channel+'0', base64.StdEncoding.AppendEncode(nil, p)
	}
	if err := t.frames.write(op, []byte{channel}, payload); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (t *wsTransport) finish(ending []byte) {
	t.hurry()
	if len(ending) > 0 {
		_, _ = t.send(channelError, ending)
	}
	_ = t.frames.close(closeNormal)
}

func (t *wsTransport) cut() {
	close(t.done)
	_ = t.conn.Close()
}
