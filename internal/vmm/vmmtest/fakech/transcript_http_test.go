// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

func (e *env) decode(a answer, into any) {
	e.t.Helper()
	if err := json.Unmarshal([]byte(a.body), into); err != nil {
		e.t.Fatalf("%s: %v in %q", a.what, err, a.body)
	}
}

func parseFailure(text string) string {
	return fmt.Sprintf("{ \"error\": \"%s\nAll previous unanswered requests will be dropped.\" }", text)
}

func httpTranscripts() []transcript {
	get := func(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n" }
	return []transcript{
		{"the status line has no reason and 204 no length", false, func(e *env) {
			e.start()
			c := e.dial()
			fmt.Fprint(c, "PUT /api/v1/vm.delete HTTP/1.1\r\n\r\n")
			want := "HTTP/1.1 204 \r\nServer: Cloud Hypervisor API\r\nConnection: keep-alive\r\n\r\n"
			got := make([]byte, len(want))
			if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
				e.t.Errorf("got %q (%v), want %q", got, err, want)
			}
		}},
		{"only GET and PUT are spoken", false, func(e *env) {
			e.start()
			bad := string(errorBody("Bad Request"))
			e.raw("POST", "POST /api/v1/vmm.ping HTTP/1.1\r\n\r\n").
				is(400, parseFailure("Invalid HTTP Method: Unsupported HTTP method."))
			e.do("DELETE", "vmm.ping", nil).is(400, bad)
			if a := e.do("DELETE", "vm.boot", nil).is(400, ""); a.body != "" {
				e.t.Errorf("body %q", a.body)
			}
			e.put("vmm.ping").is(400, bad)
			e.put("vm.info").is(400, bad)
			e.get("vm.boot").is(400, bad)
		}},
		{"unknown paths and query strings are not found", false, func(e *env) {
			e.start()
			missing := string(errorBody("Not Found"))
			e.get("vm.nothing").is(404, missing)
			e.get("vmm.ping?x=1").is(404, missing)
			e.raw("root", get("/")).is(404, missing)
		}},
		{"a body must be there when needed and not otherwise", false, func(e *env) {
			e.start()
			e.put("vm.boot", "{}").is(400, string(errorBody("Bad Request")))
			e.put("vm.add-disk").is(400, string(errorBody("Bad Request")))
			if a := e.put("vm.create").is(400, ""); a.body != "" {
				e.t.Errorf("body %q", a.body)
			}
		}},
		{"chunked requests are malformed", false, func(e *env) {
			e.start()
			e.raw("chunked", "PUT /api/v1/vm.create HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n").
				is(400, parseFailure("Invalid request."))
		}},
		{"lines and bodies have limits", false, func(e *env) {
			e.start()
			e.raw("line", get("/"+strings.Repeat("a", 1100))).is(400, parseFailure("Invalid request."))
			limit := e.s.d.bodyLimit()
			e.raw("body", fmt.Sprintf("PUT /api/v1/vm.create HTTP/1.1\r\nContent-Length: %d\r\n\r\n", limit+1)).
				is(400, parseFailure(fmt.Sprintf(
					"Request payload with size %d is larger than the limit of %d allowed by server.", limit+1, limit)))
			e.raw("version", "GET /api/v1/vmm.ping HTTP/2.0\r\n\r\n").
				is(400, parseFailure("Invalid HTTP Version: Unsupported HTTP version."))
		}},
		{"a body of nearly the limit is read whole", false, func(e *env) {
			e.start()
			e.put("vm.create", e.config(object{"platform": object{"oem_strings": []string{strings.Repeat("x", 48000)}}})).done()
		}},
		{"the eleventh connection is turned away", false, func(e *env) {
			e.start()
			e.get("vmm.ping").is(200, "") // the connection that start made is gone by now
			var open []net.Conn
			for range maxConnections {
				c := e.dial()
				fmt.Fprint(c, get("/api/v1/vmm.ping"))
				e.read("ping", bufio.NewReader(c)).is(200, "")
				open = append(open, c)
			}
			e.raw("eleventh", "").is(503, `{ "error": "Too many open connections" }`)
			open[0].Close()
			e.until("a slot is free again", func() bool {
				a := e.raw("ping", get("/api/v1/vmm.ping"))
				return a.err == nil && a.status == 200
			})
		}},
		{"connections are kept and requests pipelined", false, func(e *env) {
			e.start()
			c := e.dial()
			fmt.Fprint(c, get("/api/v1/vmm.ping")+get("/api/v1/vm.info"))
			r := bufio.NewReader(c)
			e.read("first", r).is(200, "")
			e.read("second", r).fails(kindNotCreated, "The VM info is not available", "VM is not created")
		}},
		{"a request that asks to continue is told so", false, func(e *env) {
			e.start()
			c := e.dial()
			fmt.Fprint(c, "PUT /api/v1/vm.create HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
			r := bufio.NewReader(c)
			if line, err := r.ReadString('\n'); line != "HTTP/1.1 100 \r\n" {
				e.t.Errorf("got %q (%v)", line, err)
			}
		}},
		{"half-closing loses the answer", false, func(e *env) {
			e.start()
			// The request stays incomplete until the close, so that the close is always seen first.
			c := e.dial().(*net.UnixConn)
			fmt.Fprint(c, "GET /api/v1/vmm.ping HTTP/1.1\r\n")
			_ = c.CloseWrite()
			e.read("ping", bufio.NewReader(c)).lost()
			e.get("vmm.ping").is(200, "")
		}},
	}
}

func (e *env) dial() net.Conn {
	e.t.Helper()
	c, err := net.Dial("unix", e.api)
	if err != nil {
		e.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	e.t.Cleanup(func() { c.Close() })
	return c
}

func jsonTranscripts() []transcript {
	create := []struct{ body, text string }{
		{`{`, "EOF while parsing an object at line 1 column 1"},
		{`{}x`, "trailing characters at line 1 column 3"},
		{`null`, "invalid type: null, expected struct VmConfig at line 1 column 4"},
		{`{"cpus":{}}`, "missing field `boot_vcpus` at line 1 column 10"},
		{`{"cpus":{"boot_vcpus":1}}`, "missing field `max_vcpus` at line 1 column 24"},
		{`{"cpus":{"boot_vcpus":"1","max_vcpus":1}}`, `invalid type: string "1", expected u32 at line 1 column 25`},
		{`{"cpus":{"boot_vcpus":-1,"max_vcpus":1}}`, "invalid value: integer `-1`, expected u32 at line 1 column 24"},
		{`{"cpus":{"boot_vcpus":1,"max_vcpus":1},}`, "trailing comma at line 1 column 40"},
		{`{"memory":{}}`, "missing field `size` at line 1 column 12"},
		{"{\n \"memory\":{}}", "missing field `size` at line 2 column 12"},
		{`{"memory":{"size":1.5}}`, "invalid type: floating point `1.5`, expected u64 at line 1 column 21"},
		{`{"serial":{}}`, "missing field `mode` at line 1 column 12"},
		{
			`{"serial":{"mode":"socket"}}`,
			"unknown variant `socket`, expected one of `Off`, `Pty`, `Tty`, `File`, `Socket`, `Null` at line 1 column 27",
		},
		{`{"vsock":{"cid":3}}`, "missing field `socket` at line 1 column 18"},
		{`{"vsock":{"socket":"x"}}`, "missing field `cid` at line 1 column 23"},
		{
			`{"disks":[{"image_type":"raw"}]}`,
			"unknown variant `raw`, expected one of `FixedVhd`, `Qcow2`, `Raw`, `Vhdx`, `Unknown` at line 1 column 29",
		},
		{`{"disks":{}}`, "invalid type: map, expected a sequence at line 1 column 9"},
		{`{"disks":[{"path":"a","queue_size":70000}]}`, "invalid value: integer `70000`, expected u16 at line 1 column 40"},
		{`{"disks":[{"path":"a"},{"readonly":1}]}`, "invalid type: integer `1`, expected a boolean at line 1 column 36"},
		{
			`{"net":[{"mac":"zz"}]}`,
			"The provided MAC address is invalid: parsing of zz into a MAC address failed at line 1 column 20",
		},
		{`{"payload":{"kernel":3}}`, "invalid type: integer `3`, expected path string at line 1 column 22"},
		{`{"pvpanic":"x"}`, `invalid type: string "x", expected a boolean at line 1 column 14`},
	}
	return []transcript{
		{"JSON mistakes are named with their place", false, func(e *env) {
			e.start()
			for _, c := range create {
				e.put("vm.create", c.body).syntax(c.text)
			}
			e.put("vm.add-net", `{"num_queues":"x"}`).syntax(`invalid type: string "x", expected usize at line 1 column 17`)
			e.put("vm.remove-device", `{}`).syntax("missing field `id` at line 1 column 2")
			e.put("vm.resize-disk", `{"id":"a"}`).syntax("missing field `desired_size` at line 1 column 10")
			e.put("vm.resize", `{"desired_ram":-1}`).syntax("invalid value: integer `-1`, expected u64 at line 1 column 17")
		}},
		{"unknown fields are ignored silently", false, func(e *env) {
			e.start()
			e.put("vm.create", `{"nonsense":{"a":[1,{"b":null}],"c":"\u00e9"},"payload":{"kernel":"k","x":1.5}}`).done()
			e.state("Created")
		}},
		{"SMBIOS names are old, new or twice a mistake", false, func(e *env) {
			e.start()
			if e.s.d >= dialect53 {
				e.put("vm.create", `{"platform":{"uuid":"a","system_uuid":"b"}}`).
					syntax("duplicate field `system_uuid` at line 1 column 37")
			}
			e.put("vm.create", `{"platform":{"uuid":"u","serial_number":"s"}}`).done()
			want := map[bool]string{true: `"system_uuid":"u"`, false: `"uuid":"u"`}[e.s.d >= dialect53]
			if body := e.get("vm.info").is(200, "").body; !strings.Contains(body, want) {
				e.t.Errorf("info %s, want %s in it", body, want)
			}
		}},
		{"unset options are left out from v53 on and null before", false, func(e *env) {
			e.start()
			e.put("vm.create", `{"payload":{"kernel":"k"}}`).done()
			body := e.get("vm.info").is(200, "").body
			if got := strings.Contains(body, "null"); got != (e.s.d < dialect53) {
				e.t.Errorf("info %s", body)
			}
			if e.s.d == dialect53 && !strings.Contains(body, `"payload":{"kernel":"k"},"rng":{"pci_segment":0,"src":"/dev/urandom"},`+
				`"serial":{"mode":"Null"},"console":{"mode":"Tty","pci_segment":0},"debug_console":{"mode":"Off","iobase":233},`+
				`"pvpanic":false,"iommu":false,"watchdog":false,"landlock_enable":false},"state":"Created","memory_actual_size":536870912}`) {
				e.t.Errorf("info %s", body)
			}
		}},
	}
}
