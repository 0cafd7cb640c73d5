// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
)

// fakeQMP answers as a QEMU with sixteen ports whose guest runs, and keeps what it was told. It is for what no QEMU
// here can do: clusters and PCI functions.
type fakeQMP struct {
	ref    vmm.Ref
	refuse map[string]string // command -> error

	mu       sync.Mutex
	commands []string // those that change something, as sent
	objects  map[string]bool
	nodes    map[string]bool
	chardevs map[string]bool
	devices  map[string]string // id -> type
}

func newFakeQMP(t *testing.T) *fakeQMP {
	t.Helper()
	dir, err := os.MkdirTemp("", "qmp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := &fakeQMP{
		ref:    vmm.Ref{MachineID: machineID, RuntimeDir: dir, StateDir: dir},
		refuse: map[string]string{}, objects: map[string]bool{}, nodes: map[string]bool{}, chardevs: map[string]bool{},
		devices: map[string]string{},
	}
	for i := range DefaultHotplugPorts {
		f.devices[portName(i)] = "pcie-root-port"
	}
	l, err := net.Listen("unix", filepath.Join(dir, qmpSocket))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.serve(conn)
			conn.Close()
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return f
}

func (f *fakeQMP) serve(conn net.Conn) {
	fmt.Fprintln(conn, `{"QMP":{"version":{"qemu":{"major":7,"minor":2,"micro":0},"package":""},"capabilities":[]}}`)
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		var c struct {
			Execute   string         `json:"execute"`
			Arguments map[string]any `json:"arguments"`
			ID        string         `json:"id"`
		}
		if json.Unmarshal(lines.Bytes(), &c) != nil {
			return
		}
		reply := map[string]any{"id": c.ID}
		if text, bad := f.refuse[c.Execute]; bad {
			f.note(c.Execute, c.Arguments)
			reply["error"] = map[string]string{"class": "GenericError", "desc": text}
		} else {
			reply["return"] = f.answer(c.Execute, c.Arguments)
		}
		raw, _ := json.Marshal(reply)
		fmt.Fprintln(conn, string(raw))
	}
}

func (f *fakeQMP) note(command string, args map[string]any) {
	raw, _ := json.Marshal(args)
	f.mu.Lock()
	f.commands = append(f.commands, command+" "+string(raw))
	f.mu.Unlock()
}

func (f *fakeQMP) sent() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.commands, "\n")
}

func (f *fakeQMP) answer(command string, args map[string]any) any {
	id, _ := args["id"].(string)
	node, _ := args["node-name"].(string)
	switch command {
	case "query-uuid":
		return map[string]string{"UUID": f.ref.MachineID}
	case "query-status":
		return map[string]string{"status": "running"}
	case "query-memdev":
		return []map[string]bool{{"share": true}}
	case "qom-list":
		list := []map[string]string{}
		if args["path"] == objectPath {
			for o := range f.objects {
				list = append(list, map[string]string{"name": o, "type": "child<secret>"})
			}
			return list
		}
		for d, kind := range f.devices {
			list = append(list, map[string]string{"name": d, "type": "child<" + kind + ">"})
		}
		return list
	case "qom-get":
		return "/machine/peripheral/rp0/" + portName(0)
	case "query-named-block-nodes":
		list := []map[string]string{}
		for n := range f.nodes {
			list = append(list, map[string]string{"node-name": n, "drv": "raw"})
		}
		return list
	case "query-chardev":
		list := []map[string]string{}
		for c := range f.chardevs {
			list = append(list, map[string]string{"label": c})
		}
		return list
	case "human-monitor-command":
		return ""
	case "query-block":
		return []string{}
	case "qmp_capabilities":
		return struct{}{}
	}
	f.note(command, args)
	switch command {
	case "object-add":
		f.objects[id] = true
	case "object-del":
		delete(f.objects, id)
	case "blockdev-add":
		f.nodes[node] = true
	case "blockdev-del":
		delete(f.nodes, node)
	case "chardev-add":
		f.chardevs[id] = true
	case "chardev-remove":
		delete(f.chardevs, id)
	case "device_add":
		f.devices[id], _ = args["driver"].(string)
	case "device_del":
		delete(f.devices, id)
	}
	return struct{}{}
}
