// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
)

// soon waits for the guest to say something, and logs how long that took: a second at most on an idle host, which no
// test can know it is on.
func (d *daemon) soon(id, what string, after time.Time, says ...string) {
	d.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		log := string(d.consoleLog(id))
		missing := ""
		for _, s := range says {
			if !strings.Contains(log, s) {
				missing = s
			}
		}
		if missing == "" {
			break
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("%s: the guest never says %q", what, missing)
		}
		time.Sleep(5 * time.Millisecond)
	}
	d.t.Logf("%s: seen by the guest after %s", what, time.Since(after).Round(time.Millisecond))
}

// shell runs a command in the guest and returns what it printed.
func (d *daemon) shell(id, command string) string {
	d.t.Helper()
	out, err := d.tryShell(id, command)
	if err != nil {
		d.t.Fatalf("%s: %v", command, err)
	}
	return out
}

func (d *daemon) tryShell(id, command string) (string, error) {
	d.t.Helper()
	conn := d.attach(id)
	defer func() { _ = conn.Close() }()
	nonce := time.Now().UnixNano()
	// The typed line is echoed, and must not look like the answer.
	line := fmt.Sprintf("echo begin-$((40+2))-%d; %s; echo end-$((40+2))-%d\n", nonce, command, nonce)
	if _, err := conn.Write([]byte(line)); err != nil {
		return "", err
	}
	begin, end := fmt.Sprintf("begin-42-%d", nonce), fmt.Sprintf("end-42-%d", nonce)
	var out bytes.Buffer
	begun := false
	lines := bufio.NewReader(conn)
	for {
		text, err := lines.ReadString('\n')
		if err != nil {
			return out.String(), fmt.Errorf("no end is seen: %w", err)
		}
		text = strings.TrimRight(text, "\r\n")
		switch {
		case strings.HasSuffix(text, end):
			return out.String() + strings.TrimSuffix(text, end), nil
		case strings.HasSuffix(text, begin):
			begun = true
		case begun && text != "" && !strings.HasPrefix(text, "guest: ") && !strings.HasPrefix(text, "["):
			out.WriteString(text + "\n")
		}
	}
}

// diskOfSize is the guest's name of the disk with so many bytes, as it announced it last.
func (d *daemon) diskOfSize(id string, size int64) string {
	d.t.Helper()
	name := ""
	d.until(fmt.Sprintf("the guest has a disk of %d bytes", size), func() bool {
		for line := range strings.Lines(string(d.consoleLog(id))) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "guest: ") && strings.HasSuffix(line, fmt.Sprintf(" bytes=%d", size)) {
				name = strings.Fields(line)[2]
			}
		}
		return name != ""
	})
	return name
}

// write puts a text on a disk of the guest, durably; read returns as many bytes of its beginning.
func (d *daemon) write(id, disk, text string) {
	d.t.Helper()
	d.shell(id, fmt.Sprintf("printf '%%s' '%s' | dd of=/dev/%s conv=fsync 2>/dev/null; sync", text, disk))
	if got := d.read(id, disk, len(text)); got != text {
		d.t.Fatalf("wrote %q, read %q", text, got)
	}
}

func (d *daemon) read(id, disk string, n int) string {
	d.t.Helper()
	return strings.TrimSpace(d.shell(id, fmt.Sprintf("blockdev --flushbufs /dev/%[1]s; dd if=/dev/%[1]s bs=%[2]d count=1 2>/dev/null; echo", disk, n)))
}

func (d *daemon) attachVolume(id string, v *iri.Volume) time.Time {
	d.t.Helper()
	asked := time.Now()
	if _, err := d.AttachVolume(d.t.Context(), &iri.AttachVolumeRequest{MachineId: id, Volume: v}); err != nil {
		d.t.Fatal(err)
	}
	return asked
}

func (d *daemon) updateVolume(id string, v *iri.Volume) time.Time {
	d.t.Helper()
	asked := time.Now()
	if _, err := d.UpdateVolume(d.t.Context(), &iri.UpdateVolumeRequest{MachineId: id, Volume: v}); err != nil {
		d.t.Fatal(err)
	}
	return asked
}

func (d *daemon) detachVolume(id, name string) {
	d.t.Helper()
	if _, err := d.DetachVolume(d.t.Context(), &iri.DetachVolumeRequest{MachineId: id, Name: name}); err != nil {
		d.t.Fatal(err)
	}
}

// volumes waits until exactly these are attached, in whatever order.
func (d *daemon) volumes(id string, names ...string) {
	d.t.Helper()
	slices.Sort(names)
	last := ""
	defer func() {
		if d.t.Failed() {
			d.t.Log("last seen: ", last)
		}
	}()
	d.until(fmt.Sprintf("volumes %v", names), func() bool {
		m := d.get(id)
		last = fmt.Sprint(m.GetStatus())
		var have []string
		for _, v := range m.Status.Volumes {
			if v.State == iri.VolumeState_VOLUME_ATTACHED {
				have = append(have, v.Name)
			}
		}
		slices.Sort(have)
		return m.Status.ObservedGeneration == m.Metadata.Generation && slices.Equal(have, names) && len(m.Status.Volumes) == len(names)
	})
}

// condition waits until the machine's condition about its volumes says something.
func (d *daemon) condition(id, text string) {
	d.t.Helper()
	last := ""
	defer func() {
		if d.t.Failed() {
			d.t.Log("last seen: ", last)
		}
	}()
	d.until("a condition says "+text, func() bool {
		for _, c := range d.get(id).Status.MachineConditions {
			if c.Type == "VolumesReady" {
				last = c.Reason + ": " + c.Message
			}
		}
		return strings.Contains(last, text)
	})
}

// onQEMU is the daemon on QEMU, and a machine of it whose guest is up.
func onQEMU(t *testing.T, name string, args ...string) (*daemon, string) {
	t.Helper()
	binary, _, _ := programs(t)
	registryHost, ref := serve(t)
	d := newDaemon(t, binary, registryHost, append([]string{"--hypervisor", "qemu"}, args...)...)
	d.start()
	return d, d.up(newMachine(ref, name))
}

func (d *daemon) up(m *iri.Machine) string {
	d.t.Helper()
	id := d.create(m)
	d.state(id, iri.MachineState_MACHINE_RUNNING)
	d.says(id, "guest: ready login:", 1)
	return id
}
