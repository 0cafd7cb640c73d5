// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	computev1alpha1 "github.com/ironcore-dev/ironcore/api/compute/v1alpha1"
	corev1alpha1 "github.com/ironcore-dev/ironcore/api/core/v1alpha1"
	storagev1alpha1 "github.com/ironcore-dev/ironcore/api/storage/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironcore-dev/cloud-hypervisor-provider/test/ceph"
)

// startCeph runs a cluster until the test ends.
func startCeph(t *testing.T) *ceph.Cluster {
	t.Helper()
	if missing := ceph.Missing(); len(missing) > 0 {
		t.Skipf("SKIPPED, AND NOTHING IS PROVEN: a real Ceph needs the packages %s", strings.Join(missing, " "))
	}
	dir, err := os.MkdirTemp("", "ceph")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cluster, err := ceph.Start(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Stop() })
	return cluster
}

// TestAVolumeOfCephGrowsAndComesBack attaches a volume as ironcore's storage side hands it out, by its status.
func TestAVolumeOfCephGrowsAndComesBack(t *testing.T) {
	onRequest(t)
	cluster := startCeph(t)
	p := newProduct(t)
	const image = "disk"
	if err := cluster.CreateImage(t.Context(), image, 48<<20, ""); err != nil {
		t.Fatal(err)
	}
	p.step(t, "a machine boots", func(t *testing.T) {
		p.createMachine(t, nil)
		p.becomes(t, computev1alpha1.MachineStateRunning)
		p.says(t, login, 1)
		p.settles(t)
	})
	p.step(t, "a volume that becomes available is attached", func(t *testing.T) {
		begin := time.Now()
		p.offerVolume(t, cluster, image)
		p.edit(t, func(m *computev1alpha1.Machine) {
			device := "odc"
			m.Spec.Volumes = append(m.Spec.Volumes, computev1alpha1.Volume{
				Name: "remote", Device: &device,
				VolumeSource: computev1alpha1.VolumeSource{VolumeRef: &corev1.LocalObjectReference{Name: image}},
			})
		})
		p.volumeIs(t, "remote", computev1alpha1.VolumeStateAttached)
		p.guestShows(t, "cat /proc/partitions", blocks(48))
		p.settles(t)
		p.askedFor(t, begin, "AttachVolume")
	})
	p.step(t, "it grows under the guest", func(t *testing.T) {
		begin := time.Now()
		if _, err := cluster.RBD(t.Context(), nil, "resize", "--no-progress", "--size", "80M", "rbd/"+image); err != nil {
			t.Fatal(err)
		}
		p.patchVolume(t, image, func(v *storagev1alpha1.Volume) {
			v.Status.Resources = corev1alpha1.ResourceList{corev1alpha1.ResourceStorage: resource.MustParse("80Mi")}
		})
		p.guestShows(t, "cat /proc/partitions", blocks(80))
		p.settles(t)
		p.askedFor(t, begin, "UpdateVolume")
	})
	p.step(t, "a minute in which nothing is to be done", func(t *testing.T) { p.staysQuiet(t, quietTime) })
	p.step(t, "one that is not available for a time is detached and comes back", func(t *testing.T) {
		begin := time.Now()
		p.patchVolume(t, image, func(v *storagev1alpha1.Volume) { v.Status.State = storagev1alpha1.VolumeStateError })
		p.guestShows(t, "echo count=$(grep -c '"+blocks(80)+"' /proc/partitions)", "^count=0")
		p.patchVolume(t, image, func(v *storagev1alpha1.Volume) { v.Status.State = storagev1alpha1.VolumeStateAvailable })
		p.guestShows(t, "cat /proc/partitions", blocks(80))
		p.volumeIs(t, "remote", computev1alpha1.VolumeStateAttached)
		p.settles(t)
		p.askedFor(t, begin, "DetachVolume", "AttachVolume")
	})
	p.step(t, "the machine goes, the volume stays", func(t *testing.T) {
		p.deleteMachine(t)
		if out, err := cluster.RBD(t.Context(), nil, "info", "rbd/"+image); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// offerVolume makes a Volume object that looks as if a provider of storage had made the volume.
func (p *product) offerVolume(t *testing.T, cluster *ceph.Cluster, image string) {
	t.Helper()
	p.create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: image},
		StringData: map[string]string{"userID": cluster.User, "userKey": cluster.Key},
	})
	p.create(t, &storagev1alpha1.Volume{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: image}})
	p.patchVolume(t, image, func(v *storagev1alpha1.Volume) {
		v.Status.State = storagev1alpha1.VolumeStateAvailable
		v.Status.Resources = corev1alpha1.ResourceList{corev1alpha1.ResourceStorage: resource.MustParse("48Mi")}
		v.Status.Access = &storagev1alpha1.VolumeAccess{
			Driver: "ceph", Handle: "handle-of-" + image, SecretRef: &corev1.LocalObjectReference{Name: image},
			VolumeAttributes: map[string]string{"image": "rbd/" + image, "monitors": cluster.Monitor},
		}
	})
}

// patchVolume changes the status of a Volume object, as a provider of storage does.
func (p *product) patchVolume(t *testing.T, name string, change func(*storagev1alpha1.Volume)) {
	t.Helper()
	eventually(t, "the volume's status is changed", func() error {
		var v storagev1alpha1.Volume
		if err := p.Client().Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &v); err != nil {
			return err
		}
		was := client.MergeFrom(v.DeepCopy())
		change(&v)
		if err := p.Client().Status().Patch(t.Context(), &v, was); err != nil {
			return fmt.Errorf("patch: %w", err)
		}
		return nil
	})
}
