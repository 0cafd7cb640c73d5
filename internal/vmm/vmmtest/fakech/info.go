// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package fakech

import (
	"bytes"
	"fmt"
	"net"
	"sort"
)

// info is the answer to vm.info.
func (v *vmm) info() ([]byte, *chainError) {
	if v.cfg == nil {
		return nil, errNotCreated()
	}
	var b bytes.Buffer
	state, size := stateCreated, v.cfg.Memory.total()-v.cfg.Memory.hotplugged()
	if v.vm != nil {
		state = v.vm.state
	}
	b.WriteString(`{"config":`)
	b.Write(encodeConfig(v.dialect, *v.cfg))
	fmt.Fprintf(&b, `,"state":"%s","memory_actual_size":%d`, state, size)
	if v.vm != nil {
		b.WriteString(`,"device_tree":`)
		v.vm.writeTree(&b)
	} else if v.dialect < dialect53 {
		b.WriteString(`,"device_tree":null`)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// writeTree writes the device tree, keyed by id.
func (m *machine) writeTree(b *bytes.Buffer) {
	ids := make([]string, 0, len(m.nodes))
	for id := range m.nodes {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	b.WriteByte('{')
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		writeString(b, id)
		b.WriteByte(':')
		m.nodes[id].write(b, m.v.dialect)
	}
	b.WriteByte('}')
}

func (n *node) write(b *bytes.Buffer, d dialect) {
	optional := func(key, value string) {
		switch {
		case value != "":
			fmt.Fprintf(b, `,"%s":`, key)
			writeString(b, value)
		case d < dialect53:
			fmt.Fprintf(b, `,"%s":null`, key)
		}
	}
	b.WriteString(`{"id":`)
	writeString(b, n.id)
	fmt.Fprintf(b, `,"resources":[%s]`, n.res)
	optional("parent", n.parent)
	b.WriteString(`,"children":[`)
	for i, c := range n.children {
		if i > 0 {
			b.WriteByte(',')
		}
		writeString(b, c)
	}
	b.WriteByte(']')
	optional("pci_bdf", n.bdf)
	b.WriteByte('}')
}

// The counters of a guest that does no I/O; latencies nobody measured are u64 max, averages a tenth of
// a thousandth of it.
const (
	diskCounters = `{"read_bytes":0,"write_bytes":0,"read_ops":0,"write_ops":0,` +
		`"read_latency_min":18446744073709551615,"read_latency_max":18446744073709551615,` +
		`"read_latency_avg":1844674407370955,"write_latency_min":18446744073709551615,` +
		`"write_latency_max":18446744073709551615,"write_latency_avg":1844674407370955}`
	netCounters = `{"rx_bytes":0,"tx_bytes":0,"rx_frames":0,"tx_frames":0}`
)

// counters is the answer to vm.counters: native disks and NICs only.
func (v *vmm) counters() ([]byte, *chainError) {
	if v.vm == nil {
		return nil, errNotRunning()
	}
	parts := map[string]string{}
	for id, n := range v.vm.nodes {
		if _, native := n.held.(*disk); native {
			parts[id] = diskCounters
		} else if _, vhost := n.held.(net.Conn); n.kind == "net" && !vhost {
			parts[id] = netCounters
		}
	}
	ids := make([]string, 0, len(parts))
	for id := range parts {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	var b bytes.Buffer
	b.WriteByte('{')
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		writeString(&b, id)
		b.WriteByte(':')
		b.WriteString(parts[id])
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}
