// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Role is something that ironcore's release grants rights to: to ask for its first certificate with a bootstrap token,
// and then, by the certificate's organisation, to do its work.
type Role struct {
	// Bootstrappers is the group of the bootstrap tokens.
	Bootstrappers string
	// Group is the organisation in the certificate.
	Group string
	// UserPrefix is what the common name begins with; the name of the pool or node follows.
	UserPrefix string
	// manifests is what the files of ironcore's release that grant this begin with.
	manifests string
}

// MachinePools are machinepoollets.
func MachinePools() Role {
	return Role{
		Bootstrappers: "system:bootstrappers:compute-ironcore-dev:machinepools",
		Group:         "compute.ironcore.dev:system:machinepools", UserPrefix: "compute.ironcore.dev:system:machinepool:",
		manifests: "machinepool",
	}
}

// NetworkPlugins are the parts of providers that make network interfaces of ironcore-net.
func NetworkPlugins() Role {
	return Role{
		Bootstrappers: "system:bootstrappers:networking-ironcore-dev:networkplugins",
		Group:         "networking.ironcore.dev:system:networkplugins", UserPrefix: "networking.ironcore.dev:system:networkplugin:",
		manifests: "networkplugin",
	}
}

// grantShippedRoles applies the roles and bindings of ironcore's release.
func (cp *ControlPlane) grantShippedRoles(ctx context.Context) error {
	// The server makes these as well, a moment after it says that it is ready.
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespaceDefault} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := cp.client.Create(ctx, namespace); client.IgnoreAlreadyExists(err) != nil {
			return fmt.Errorf("create namespace %s: %w", name, err)
		}
	}
	const leases = "namespaces/machinepool-lease/"
	files := []string{leases + "namespace", leases + "poollet_role", leases + "poollet_rolebinding"}
	for _, role := range []Role{MachinePools(), NetworkPlugins()} {
		for _, part := range []string{"role", "rolebinding", "bootstrapper_role", "bootstrapper_rolebinding"} {
			files = append(files, "apiserver/rbac/"+role.manifests+"_"+part)
		}
	}
	for _, file := range files {
		if err := cp.applyFile(ctx, cp.programs.Manifest(file+".yaml")); err != nil {
			return fmt.Errorf("apply ironcore's %s: %w", file, err)
		}
	}
	return nil
}

// applyFile applies the objects of a YAML file.
func (cp *ControlPlane) applyFile(ctx context.Context, file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return cp.Apply(ctx, raw)
}

// Apply applies the objects of a YAML document, several of which are divided by lines of three hyphens.
func (cp *ControlPlane) Apply(ctx context.Context, document []byte) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	for part := range strings.SplitSeq("\n"+string(document), "\n---") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(part), &object.Object); err != nil {
			return err
		}
		if len(object.Object) == 0 {
			continue
		}
		err := cp.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), owner, client.ForceOwnership)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// Grant lets a user do something in all namespaces, by a role and a binding of the given name.
func (cp *ControlPlane) Grant(t testing.TB, name, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	ctx, cancel := bounded(t.Context())
	defer cancel()
	meta := metav1.ObjectMeta{Name: name}
	for _, object := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		},
	} {
		if err := cp.client.Create(ctx, object); err != nil {
			t.Fatal(err)
		}
	}
}

// Kubeconfig writes a file for a user with a certificate, and returns its path.
func (cp *ControlPlane) Kubeconfig(user string, groups ...string) (string, error) {
	p, err := cp.ca.client(user, groups...)
	if err != nil {
		return "", err
	}
	return cp.writeKubeconfig(&clientcmdapi.AuthInfo{ClientCertificateData: p.cert, ClientKeyData: p.key})
}

// BootstrapKubeconfig makes a bootstrap token for a role and returns a kubeconfig that has it.
func (cp *ControlPlane) BootstrapKubeconfig(t testing.TB, role Role) string {
	t.Helper()
	id, secret := strings.ToLower(rand.Text()[:6]), strings.ToLower(rand.Text()[:16])
	ctx, cancel := bounded(t.Context())
	defer cancel()
	if err := cp.client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
			"auth-extra-groups": role.Bootstrappers,
		},
	}); err != nil {
		t.Fatalf("create a bootstrap token: %v", err)
	}
	file, err := cp.writeKubeconfig(&clientcmdapi.AuthInfo{Token: id + "." + secret})
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// Server is the address of kube-apiserver.
func (cp *ControlPlane) Server() string { return fmt.Sprintf("https://127.0.0.1:%d", cp.apiPort) }

func (cp *ControlPlane) writeKubeconfig(auth *clientcmdapi.AuthInfo) (string, error) {
	authority, err := os.ReadFile(cp.ca.file)
	if err != nil {
		return "", err
	}
	const name = "test"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: cp.Server(), CertificateAuthorityData: authority}
	config.AuthInfos[name] = auth
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	file := filepath.Join(cp.dir, "kubeconfig-"+strings.ToLower(rand.Text()[:8]))
	return file, clientcmd.WriteToFile(*config, file)
}

// loadConfig reads a kubeconfig.
func loadConfig(file string) (*rest.Config, error) {
	return clientcmd.BuildConfigFromFlags("", file)
}

// LoadConfig reads a kubeconfig, of the harness or one that a program wrote.
func LoadConfig(t testing.TB, file string) *rest.Config {
	t.Helper()
	config, err := loadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	return config
}
