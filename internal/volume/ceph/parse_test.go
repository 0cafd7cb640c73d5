// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package ceph

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
)

const goodKey = "AQBzVGNlAAAAABAA8vl3HXmFMJ6fDxkTeXLtnQ=="

func good() machine.Volume {
	return machine.Volume{Name: "data", Device: "odb", Connection: &machine.Connection{
		Driver: "ceph", Handle: "h", EffectiveStorageBytes: 1 << 30,
		Attributes: map[string]string{"image": "pool/image", "monitors": "10.0.0.1:6789,[fd00::1]:3300, mon.example:6789"},
		SecretData: map[string][]byte{"userID": []byte("me"), "userKey": []byte(goodKey)},
	}}
}

func native(t *testing.T) *Plugin {
	t.Helper()
	p, err := New(Options{Native: true, Inspect: func(context.Context, Image) (int64, error) { return 1 << 30, nil }})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestBadConnectionsNameTheField(t *testing.T) {
	p := native(t)
	if err := p.Validate("v", good()); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*machine.Connection)
		field  string
	}{
		"no handle":              {func(c *machine.Connection) { c.Handle = "" }, "v.connection.handle"},
		"size 0":                 {func(c *machine.Connection) { c.EffectiveStorageBytes = 0 }, "effective_storage_bytes"},
		"a negative size":        {func(c *machine.Connection) { c.EffectiveStorageBytes = -1 }, "effective_storage_bytes"},
		"no image":               {func(c *machine.Connection) { delete(c.Attributes, "image") }, "attributes[image]"},
		"an image without pool":  {func(c *machine.Connection) { c.Attributes["image"] = "image" }, "attributes[image]"},
		"an image with a path":   {func(c *machine.Connection) { c.Attributes["image"] = "a/b/c" }, "attributes[image]"},
		"an image with options":  {func(c *machine.Connection) { c.Attributes["image"] = "a/b:conf=x" }, "attributes[image]"},
		"no monitors":            {func(c *machine.Connection) { delete(c.Attributes, "monitors") }, "attributes[monitors]"},
		"a monitor without port": {func(c *machine.Connection) { c.Attributes["monitors"] = "10.0.0.1" }, "attributes[monitors]"},
		"a port beyond":          {func(c *machine.Connection) { c.Attributes["monitors"] = "10.0.0.1:70000" }, "attributes[monitors]"},
		"an empty monitor":       {func(c *machine.Connection) { c.Attributes["monitors"] = "10.0.0.1:6789," }, "attributes[monitors]"},
		"no user":                {func(c *machine.Connection) { delete(c.SecretData, "userID") }, "secret_data[userID]"},
		"no key":                 {func(c *machine.Connection) { delete(c.SecretData, "userKey") }, "secret_data[userKey]"},
		"a short key":            {func(c *machine.Connection) { c.SecretData["userKey"] = []byte("c2hvcnQ=") }, "secret_data[userKey]"},
		"a key that is no text":  {func(c *machine.Connection) { c.SecretData["userKey"] = bytes.Repeat([]byte{0xff}, 40) }, "secret_data[userKey]"},
		"an empty passphrase":    {func(c *machine.Connection) { c.EncryptionData = map[string][]byte{"encryptionKey": {}} }, "encryption_data[encryptionKey]"},
		"a passphrase too long":  {func(c *machine.Connection) { c.EncryptionData = map[string][]byte{"encryptionKey": make([]byte, 513)} }, "encryption_data[encryptionKey]"},
		"encryption not known":   {func(c *machine.Connection) { c.EncryptionData = map[string][]byte{"other": []byte("x")} }, "encryption_data[other]"},
		"a limit that is none":   {func(c *machine.Connection) { c.Attributes["total_iops_sec"] = "many" }, "attributes[total_iops_sec]"},
	} {
		v := good()
		tc.change(v.Connection)
		err := p.Validate("v", v)
		if !machine.IsKind(err, machine.Invalid) || !strings.Contains(err.Error(), tc.field) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), goodKey) {
			t.Errorf("%s: the key is told", name)
		}
	}
}

func TestWhatDecidesOnTheBytesIsInTheIdentityAndNoKey(t *testing.T) {
	p := native(t)
	same := good()
	same.Connection.EffectiveStorageBytes *= 2
	same.Connection.Attributes["monitors"] = "10.0.0.9:6789"
	same.Connection.Attributes["rawVolumeLabels"] = "{}"
	if p.Identity(same) != p.Identity(good()) {
		t.Error("size, monitors or labels change the identity")
	}
	for name, change := range map[string]func(*machine.Connection){
		"handle": func(c *machine.Connection) { c.Handle = "other" },
		"image":  func(c *machine.Connection) { c.Attributes["image"] = "pool/other" },
		"user":   func(c *machine.Connection) { c.SecretData["userID"] = []byte("you") },
		"key": func(c *machine.Connection) {
			c.SecretData["userKey"] = []byte("AQBzVGNlAAAAABAA8vl3HXmFMJ6fDxkTeXLtnA==")
		},
		"encryption": func(c *machine.Connection) { c.EncryptionData = map[string][]byte{"encryptionKey": []byte("x")} },
		"limits":     func(c *machine.Connection) { c.Attributes["total_iops_sec"] = "10" },
	} {
		v := good()
		change(v.Connection)
		if p.Identity(v) == p.Identity(good()) {
			t.Errorf("another %s is taken for the same volume", name)
		}
	}
	if id := p.Identity(good()); strings.Contains(id, goodKey) || !strings.HasPrefix(id, "v1 h pool/image ") {
		t.Errorf("identity %q", id)
	}
}

func TestOnlyConnectionsToCephAreSupported(t *testing.T) {
	p := native(t)
	for name, v := range map[string]machine.Volume{
		"another driver": {Name: "x", Connection: &machine.Connection{Driver: "nvme"}},
		"a local disk":   {Name: "x", LocalDisk: &machine.LocalDisk{}},
		"both":           {Name: "x", LocalDisk: &machine.LocalDisk{}, Connection: good().Connection},
	} {
		if p.Supports(v) {
			t.Errorf("%s is supported", name)
		}
	}
	if !p.Supports(good()) {
		t.Error("a connection to Ceph is not supported")
	}
}

func TestAHypervisorThatCannotReachCephNeedsDaemons(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("accepted")
	}
}
