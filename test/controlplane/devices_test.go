// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	commonv1alpha1 "github.com/ironcore-dev/ironcore/api/common/v1alpha1"
	computev1alpha1 "github.com/ironcore-dev/ironcore/api/compute/v1alpha1"
	networkingv1alpha1 "github.com/ironcore-dev/ironcore/api/networking/v1alpha1"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestDevicesComeAndGo attaches, changes and detaches the devices of a running machine through ironcore's API.
func TestDevicesComeAndGo(t *testing.T) {
	onRequest(t)
	p := newProduct(t)
	p.step(t, "a machine boots", func(t *testing.T) {
		p.createMachine(t, nil)
		p.becomes(t, computev1alpha1.MachineStateRunning)
		p.says(t, login, 1)
		p.settles(t)
	})
	p.step(t, "a local disk is attached", func(t *testing.T) {
		begin := time.Now()
		p.edit(t, addDisk("data", "72Mi"))
		p.volumeIs(t, "data", computev1alpha1.VolumeStateAttached)
		p.guestShows(t, "cat /proc/partitions", blocks(72))
		p.settles(t)
		p.askedFor(t, begin, "AttachVolume")
	})
	p.step(t, "a network interface is attached", p.attachInterface)
	p.step(t, "its IP changes, and the machine keeps one interface", p.changeIP)
	p.step(t, "the daemon is killed, and everything is still attached", func(t *testing.T) {
		p.daemonDies(t)
		p.volumeIs(t, "data", computev1alpha1.VolumeStateAttached)
		p.interfaceIs(t, computev1alpha1.NetworkInterfaceStateAttached)
	})
	p.step(t, "a minute in which nothing is to be done", func(t *testing.T) {
		p.settles(t)
		p.staysQuiet(t, quietTime)
	})
	p.step(t, "all are detached", p.detachAll)
	p.step(t, "the machine goes with its devices", func(t *testing.T) {
		p.edit(t, addDisk("data", "40Mi"))
		p.volumeIs(t, "data", computev1alpha1.VolumeStateAttached)
		p.deleteMachine(t)
	})
}

// blocks is a size as the guest's kernel tells it.
func blocks(mebibytes int) string { return fmt.Sprint(mebibytes * 1024) }

func addDisk(name, size string) func(*computev1alpha1.Machine) {
	return func(m *computev1alpha1.Machine) {
		limit, device := resource.MustParse(size), "odb"
		m.Spec.Volumes = append(m.Spec.Volumes, computev1alpha1.Volume{
			Name: name, Device: &device,
			VolumeSource: computev1alpha1.VolumeSource{LocalDisk: &computev1alpha1.LocalDiskVolumeSource{SizeLimit: &limit}},
		})
	}
}

func removeVolume(name string) func(*computev1alpha1.Machine) {
	return func(m *computev1alpha1.Machine) {
		m.Spec.Volumes = slices.DeleteFunc(m.Spec.Volumes, func(v computev1alpha1.Volume) bool { return v.Name == name })
	}
}

func (p *product) volumeIs(t *testing.T, name string, want computev1alpha1.VolumeState) {
	t.Helper()
	eventually(t, "volume "+name+" is "+string(want), func() error {
		m, err := p.get(t.Context())
		if err != nil {
			return err
		}
		for _, v := range m.Status.Volumes {
			if v.Name == name && v.State == want {
				return nil
			}
		}
		return fmt.Errorf("volumes %+v", m.Status.Volumes)
	})
}

func (p *product) interfaceIs(t *testing.T, want computev1alpha1.NetworkInterfaceState) computev1alpha1.NetworkInterfaceStatus {
	t.Helper()
	var status computev1alpha1.NetworkInterfaceStatus
	eventually(t, "the network interface is "+string(want), func() error {
		m, err := p.get(t.Context())
		if err != nil {
			return err
		}
		if len(m.Status.NetworkInterfaces) == 1 && m.Status.NetworkInterfaces[0].State == want {
			status = m.Status.NetworkInterfaces[0]
			return nil
		}
		return fmt.Errorf("network interfaces %+v", m.Status.NetworkInterfaces)
	})
	return status
}

// askedFor expects that of what changes something just these were asked for since a time, in this order, and granted.
func (p *product) askedFor(t *testing.T, begin time.Time, want ...string) {
	t.Helper()
	var asked []string
	for _, c := range p.calls.Since(begin) {
		switch c.Method {
		case "ListMachines", "Status", "ListEvents", "Version", "UpdateMachineAnnotations", "Exec":
			continue
		}
		if c.Code != codes.OK {
			t.Errorf("%v", c)
		}
		asked = append(asked, c.Method)
	}
	if !slices.Equal(asked, want) {
		t.Errorf("it was asked %s, want %s", strings.Join(asked, ", "), strings.Join(want, ", "))
	}
}

func address(t *testing.T, ip string) []networkingv1alpha1.IPSource {
	t.Helper()
	parsed, err := commonv1alpha1.ParseIP(ip)
	if err != nil {
		t.Fatal(err)
	}
	return []networkingv1alpha1.IPSource{{Value: &parsed}}
}

func (p *product) attachInterface(t *testing.T) {
	begin := time.Now()
	network := &networkingv1alpha1.Network{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "network"},
		Spec:       networkingv1alpha1.NetworkSpec{ProviderID: "test://network"},
	}
	p.create(t, network)
	was := client.MergeFrom(network.DeepCopy())
	network.Status.State = networkingv1alpha1.NetworkStateAvailable
	if err := p.Client().Status().Patch(t.Context(), network, was); err != nil {
		t.Fatal(err)
	}
	p.create(t, &networkingv1alpha1.NetworkInterface{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nic"},
		Spec: networkingv1alpha1.NetworkInterfaceSpec{
			NetworkRef: corev1.LocalObjectReference{Name: network.Name}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			IPs: address(t, "10.0.0.1"),
		},
	})
	p.edit(t, func(m *computev1alpha1.Machine) {
		m.Spec.NetworkInterfaces = []computev1alpha1.NetworkInterface{{
			Name: "primary",
			NetworkInterfaceSource: computev1alpha1.NetworkInterfaceSource{
				NetworkInterfaceRef: &corev1.LocalObjectReference{Name: "nic"},
			},
		}}
	})
	status := p.interfaceIs(t, computev1alpha1.NetworkInterfaceStateAttached)
	if status.Handle == "" {
		t.Errorf("no handle: %+v", status)
	}
	eventually(t, "the interface has the handle for its provider id", func() error {
		nic, err := p.nic(t)
		if err == nil && nic.Spec.ProviderID != status.Handle {
			err = fmt.Errorf("%q, the handle is %q", nic.Spec.ProviderID, status.Handle)
		}
		return err
	})
	p.guestShows(t, "ls /sys/class/net", "eth")
	p.settles(t)
	p.askedFor(t, begin, "AttachNetworkInterface")
}

func (p *product) nic(t *testing.T) (*networkingv1alpha1.NetworkInterface, error) {
	t.Helper()
	var nic networkingv1alpha1.NetworkInterface
	return &nic, p.Client().Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "nic"}, &nic)
}

func (p *product) changeIP(t *testing.T) {
	begin := time.Now()
	eventually(t, "the interface is changed", func() error {
		nic, err := p.nic(t)
		if err != nil {
			return err
		}
		nic.Spec.IPs = address(t, "10.0.0.2")
		return p.Client().Update(t.Context(), nic)
	})
	call, err := p.calls.WaitFor(t.Context(), "AttachNetworkInterface", begin)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(call.Request, "10.0.0.2") {
		t.Errorf("it asked for %v", call)
	}
	p.settles(t)
	p.interfaceIs(t, computev1alpha1.NetworkInterfaceStateAttached)
	p.guestShows(t, "echo count=$(ls -d /sys/class/net/eth* | wc -l)", "^count=1")
	p.askedFor(t, begin, "DetachNetworkInterface", "AttachNetworkInterface")
}

func (p *product) detachAll(t *testing.T) {
	begin := time.Now()
	p.edit(t, removeVolume("data"))
	p.guestShows(t, "echo count=$(grep -c '"+blocks(72)+"' /proc/partitions)", "^count=0")
	p.edit(t, func(m *computev1alpha1.Machine) { m.Spec.NetworkInterfaces = nil })
	p.guestShows(t, "echo count=$(ls -d /sys/class/net/eth* 2>/dev/null | wc -l)", "^count=0")
	p.settles(t)
	p.askedFor(t, begin, "DetachVolume", "DetachNetworkInterface")
	m, err := p.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Status.NetworkInterfaces) > 0 || len(m.Status.Volumes) != 1 {
		t.Errorf("status %+v", m.Status)
	}
}
