// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package iriserver

import (
	"bytes"
	"context"
	"encoding/base64"
	"strings"
	"testing"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume/ceph"
)

// remote is a good connection to Ceph.
func remote() *iri.Volume {
	return &iri.Volume{Name: "data", Device: "odb", Connection: &iri.VolumeConnection{
		Driver: "ceph", Handle: "h", EffectiveStorageBytes: 1 << 30,
		Attributes: map[string]string{"image": "pool/image", "monitors": "10.0.0.1:6789"},
		SecretData: map[string][]byte{
			"userID": []byte("me"), "userKey": []byte(base64.StdEncoding.EncodeToString(make([]byte, 28))),
		},
	}}
}

func TestAVolumeThatCannotBeIsRefusedWithTheFieldsName(t *testing.T) {
	plugin := func() volume.Plugin {
		p, err := ceph.New(ceph.Options{Native: true, Inspect: func(context.Context, ceph.Image) (int64, error) { return 1 << 30, nil }})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	one := newRig(t, func(o *Options) { o.Volumes = append(o.Volumes, plugin()) })
	two := newRig(t, func(o *Options) { o.Volumes = append(o.Volumes, plugin(), plugin()) })
	const at = "machine.spec.volumes[1]"
	for name, c := range map[string]struct {
		rig    *rig
		change func(*iri.Volume)
		want   string
	}{
		"an unknown driver":         {one, func(v *iri.Volume) { v.Connection.Driver = "nvme" }, at + `.connection.driver: volume data: no volume plugin supports "nvme"`},
		"claimed by two":            {two, func(*iri.Volume) {}, at + ".connection.driver: volume data: plugins ceph and ceph both claim it"},
		"monitors that are none":    {one, func(v *iri.Volume) { v.Connection.Attributes["monitors"] = "10.0.0.1" }, at + ".connection.attributes[monitors]"},
		"a key of the wrong length": {one, func(v *iri.Volume) { v.Connection.SecretData["userKey"] = []byte("AAAA") }, at + ".connection.secret_data[userKey]"},
		"a passphrase too long": {one, func(v *iri.Volume) {
			v.Connection.EncryptionData = map[string][]byte{"encryptionKey": bytes.Repeat([]byte("x"), 600)}
		}, at + ".connection.encryption_data[encryptionKey]"},
		"size 0":                   {one, func(v *iri.Volume) { v.Connection.EffectiveStorageBytes = 0 }, at + ".connection.effective_storage_bytes"},
		"a name with a slash":      {one, func(v *iri.Volume) { v.Name = "a/b" }, at + ".name"},
		"a name of 300 characters": {one, func(v *iri.Volume) { v.Name = strings.Repeat("x", 300) }, at + ".name"},
		"another volume's name":    {one, func(v *iri.Volume) { v.Name = "root" }, at + ".name"},
	} {
		m := c.rig.new("u")
		m.Spec.Volumes = []*iri.Volume{{Name: "root", Device: "oda", LocalDisk: &iri.LocalDisk{}}, remote()}
		c.change(m.Spec.Volumes[1])
		_, err := c.rig.client.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: m})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := one.new("u")
	m.Spec.Volumes = append(m.Spec.Volumes, remote())
	m.Spec.Volumes[len(m.Spec.Volumes)-1].Name = "remote"
	m.Spec.Volumes[len(m.Spec.Volumes)-1].Device = "odx"
	if _, err := one.client.CreateMachine(t.Context(), &iri.CreateMachineRequest{Machine: m}); err != nil {
		t.Errorf("a good one: %v", err)
	}
}
