// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package iriserver

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	iri "github.com/ironcore-dev/ironcore/iri/apis/machine/v1alpha1"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
	"github.com/ironcore-dev/cloud-hypervisor-provider/network"
)

// Bounds of a request. They are far above what a real client sends and keep one request from filling the store.
const (
	maxVolumes  = 64
	maxNICs     = 32
	maxIPs      = 32
	maxMapBytes = 256 << 10 // of all keys and values, as Kubernetes bounds annotations
	maxDiskSize = 64 << 40  // bytes
)

var (
	deviceForm   = regexp.MustCompile(`^[a-z][a-z0-9]{0,31}$`)
	hostnameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`)
)

// desired checks a machine to be created and makes the stored form of it. The first fault is returned, naming its
// field; nothing is changed.
func (s *Server) desired(m *iri.Machine) (*machine.Desired, error) {
	switch {
	case m == nil:
		return nil, machine.InvalidField("machine", "must be set")
	case m.Metadata == nil:
		return nil, machine.InvalidField("machine.metadata", "must be set")
	case m.Spec == nil:
		return nil, machine.InvalidField("machine.spec", "must be set")
	case m.Metadata.Id != "":
		return nil, machine.InvalidField("machine.metadata.id", "must be empty: the id is chosen here")
	}
	if err := checkMap("machine.metadata.labels", m.Metadata.Labels); err != nil {
		return nil, err
	}
	if err := checkMap("machine.metadata.annotations", m.Metadata.Annotations); err != nil {
		return nil, err
	}
	spec := m.Spec
	c, ok := s.o.Classes.Get(spec.Class)
	if !ok {
		return nil, machine.InvalidField("machine.spec.class", "there is no class %q here", spec.Class)
	}
	power, err := powerOf("machine.spec.power", spec.Power)
	if err != nil {
		return nil, err
	}
	d := &machine.Desired{
		Labels: copyMap(m.Metadata.Labels), Annotations: copyMap(m.Metadata.Annotations), Generation: 1, PowerGeneration: 1,
		CreatedAt: s.o.Now(), Power: power, Class: spec.Class,
		Resources: machine.Resources{CPUs: c.CPU(), MemoryBytes: c.MemoryBytes()},
		Ignition:  bytes.Clone(spec.IgnitionData),
	}
	if len(spec.IgnitionData) > 0 {
		if _, err := vmm.ChooseIgnition(s.o.Capabilities, s.o.Ignition, len(spec.IgnitionData)); err != nil {
			return nil, atField("machine.spec.ignition_data", err)
		}
	}
	if d.Volumes, err = s.volumes("machine.spec.volumes", spec.Volumes); err != nil {
		return nil, err
	}
	if d.NICs, err = s.nics("machine.spec.network_interfaces", spec.NetworkInterfaces); err != nil {
		return nil, err
	}
	d.GuestConfig, err = guestConfig("machine.spec.guest_config", spec.GuestConfig)
	return d, err
}

func powerOf(field string, p iri.Power) (machine.Power, error) {
	switch p {
	case iri.Power_POWER_ON:
		return machine.PowerOn, nil
	case iri.Power_POWER_OFF:
		return machine.PowerOff, nil
	}
	return "", machine.InvalidField(field, "%d is no power state", p)
}

func guestConfig(field string, g *iri.GuestConfig) (*machine.GuestConfig, error) {
	if g == nil {
		return nil, nil
	}
	if h := g.Hostname; h != "" && (len(h) > 253 || !hostnameForm.MatchString(h)) {
		return nil, machine.InvalidField(field+".hostname", "%q is no host name", h)
	}
	return &machine.GuestConfig{Hostname: g.Hostname}, nil
}

func (s *Server) volumes(field string, in []*iri.Volume) ([]machine.Volume, error) {
	if most := min(maxVolumes, limit(s.o.Capabilities.MaxDisks, maxVolumes)); len(in) > most {
		return nil, machine.InvalidField(field, "has %d entries, at most %d are possible", len(in), most)
	}
	var out []machine.Volume
	names, devices := map[string]bool{}, map[string]bool{}
	for i, v := range in {
		at := fmt.Sprintf("%s[%d]", field, i)
		vol, err := s.volume(at, v)
		switch {
		case err != nil:
			return nil, err
		case names[vol.Name]:
			return nil, machine.InvalidField(at+".name", "%q is used twice", vol.Name)
		case vol.Device != "" && devices[vol.Device]:
			return nil, machine.InvalidField(at+".device", "%q is used twice", vol.Device)
		}
		names[vol.Name], devices[vol.Device] = true, true
		out = append(out, vol)
	}
	return out, nil
}

func (s *Server) volume(at string, v *iri.Volume) (machine.Volume, error) {
	if v == nil {
		return machine.Volume{}, machine.InvalidField(at, "must be set")
	}
	out := machine.Volume{Name: v.Name, Device: v.Device}
	if err := machine.ValidateName(at+".name", v.Name); err != nil {
		return out, err
	}
	if v.Device != "" && !deviceForm.MatchString(v.Device) {
		return out, machine.InvalidField(at+".device", "%q must be lower-case letters and digits, at most 32", v.Device)
	}
	switch {
	case v.LocalDisk != nil && v.Connection != nil:
		return out, machine.InvalidField(at, "has both local_disk and connection")
	case v.LocalDisk == nil && v.Connection == nil:
		return out, machine.InvalidField(at, "has neither local_disk nor connection")
	case v.LocalDisk != nil:
		disk, err := s.localDisk(at+".local_disk", v.LocalDisk)
		if err != nil {
			return out, err
		}
		out.LocalDisk = disk
	default:
		c := v.Connection
		if err := checkMap(at+".connection.attributes", c.Attributes); err != nil {
			return out, err
		}
		if n := c.EffectiveStorageBytes; n < 0 {
			return out, machine.InvalidField(at+".connection.effective_storage_bytes", "%d must not be negative", n)
		}
		out.Connection = &machine.Connection{
			Driver: c.Driver, Handle: c.Handle, Attributes: copyMap(c.Attributes), SecretData: copySecrets(c.SecretData),
			EncryptionData: copySecrets(c.EncryptionData), EffectiveStorageBytes: c.EffectiveStorageBytes,
		}
	}
	plugin, err := volume.Pick(s.o.Volumes, out)
	if err != nil {
		if out.Connection != nil {
			at += ".connection.driver"
		}
		return out, atField(at, err)
	}
	return out, plugin.Validate(at, out)
}

func (s *Server) localDisk(at string, l *iri.LocalDisk) (*machine.LocalDisk, error) {
	if l.SizeBytes < 0 || l.SizeBytes > maxDiskSize {
		return nil, machine.InvalidField(at+".size_bytes", "%d must be between 0 and %d", l.SizeBytes, int64(maxDiskSize))
	}
	out := &machine.LocalDisk{SizeBytes: l.SizeBytes}
	if l.Image != nil {
		if err := s.o.CheckImage(l.Image.Image); err != nil {
			return nil, machine.InvalidField(at+".image.image", "%v", err)
		}
		out.Image = &l.Image.Image
	}
	return out, nil
}

func (s *Server) nics(field string, in []*iri.NetworkInterface) ([]machine.NetworkInterface, error) {
	if most := min(maxNICs, limit(s.o.Capabilities.MaxNICs, maxNICs)); len(in) > most {
		return nil, machine.InvalidField(field, "has %d entries, at most %d are possible", len(in), most)
	}
	var out []machine.NetworkInterface
	names := map[string]bool{}
	for i, n := range in {
		at := fmt.Sprintf("%s[%d]", field, i)
		nic, err := s.nic(at, n)
		switch {
		case err != nil:
			return nil, err
		case names[n.Name]:
			return nil, machine.InvalidField(at+".name", "%q is used twice", n.Name)
		}
		names[n.Name] = true
		out = append(out, nic)
	}
	return out, s.checkNetwork(field, out)
}

func (s *Server) nic(at string, n *iri.NetworkInterface) (machine.NetworkInterface, error) {
	if n == nil {
		return machine.NetworkInterface{}, machine.InvalidField(at, "must be set")
	}
	out := machine.NetworkInterface{
		Name: n.Name, NetworkID: n.NetworkId, IPs: slices.Clone(n.Ips), Attributes: copyMap(n.Attributes),
	}
	if err := machine.ValidateName(at+".name", n.Name); err != nil {
		return out, err
	}
	if err := checkIPs(at+".ips", n.Ips); err != nil {
		return out, err
	}
	return out, checkMap(at+".attributes", n.Attributes)
}

// checkNetwork asks the network plugin what it thinks of a machine's interfaces.
func (s *Server) checkNetwork(field string, nics []machine.NetworkInterface) error {
	err := s.askNetwork("", nics)
	var bad *network.FieldError
	if !errors.As(err, &bad) {
		return err
	}
	at := fmt.Sprintf("%s[%d]", field, bad.Index)
	if bad.Field != "" {
		at += "." + bad.Field
	}
	return machine.InvalidField(at, "%s", bad.Message)
}

// askNetwork returns what the network plugin says against interfaces; what is no *network.FieldError says nothing
// about them.
func (s *Server) askNetwork(machineID string, nics []machine.NetworkInterface) error {
	all := make([]network.Interface, len(nics))
	for i, n := range nics {
		all[i] = network.Interface(n)
	}
	err := s.o.Network.Validate(machineID, all)
	var bad *network.FieldError
	if err != nil && !errors.As(err, &bad) && machine.KindOf(err) == machine.Unknown {
		return machine.Wrap(machine.Unavailable, err, "check network interfaces")
	}
	return err
}

func checkIPs(field string, ips []string) error {
	if len(ips) > maxIPs {
		return machine.InvalidField(field, "has %d entries, at most %d are possible", len(ips), maxIPs)
	}
	for i, ip := range ips {
		if _, err := netip.ParseAddr(ip); err != nil {
			return machine.InvalidField(fmt.Sprintf("%s[%d]", field, i), "%q is no IP address", ip)
		}
	}
	return nil
}

// checkMap bounds a map of texts.
func checkMap(field string, m map[string]string) error {
	size := 0
	for k, v := range m {
		size += len(k) + len(v)
		if k == "" {
			return machine.InvalidField(field, "has an empty key")
		}
		if strings.ContainsRune(k, 0) || strings.ContainsRune(v, 0) {
			return machine.InvalidField(field, "key %q: zero bytes are not allowed", k)
		}
	}
	if size > maxMapBytes {
		return machine.InvalidField(field, "has %d bytes of keys and values, at most %d are possible", size, maxMapBytes)
	}
	return nil
}

// atField puts a field's name to a failure that does not know it.
func atField(field string, err error) error {
	return &machine.Error{Kind: machine.KindOf(err), Field: field, Message: err.Error()}
}

func limit(n, unset int) int {
	if n <= 0 {
		return unset
	}
	return n
}

func copyMap(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return maps.Clone(m)
}

func copySecrets(m map[string][]byte) map[string][]byte {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string][]byte, len(m))
	for k, v := range m {
		out[k] = bytes.Clone(v)
	}
	return out
}
