// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// store keeps a kubeconfig.
type store interface {
	load(ctx context.Context) ([]byte, error)
	save(ctx context.Context, kubeconfig []byte) error
	String() string // where, for a person
}

// fileStore is a file of mode 0600, replaced as a whole.
type fileStore string

func (f fileStore) String() string { return string(f) }

func (f fileStore) load(context.Context) ([]byte, error) { return os.ReadFile(string(f)) }

func (f fileStore) save(_ context.Context, kubeconfig []byte) error {
	dir := filepath.Dir(string(f))
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, "."+filepath.Base(string(f))+".*") // of mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }() // gone already when all went well
	_, err = temp.Write(kubeconfig)
	err = errors.Join(err, temp.Sync(), temp.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), string(f)); err != nil {
		return err
	}
	parent, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// secretKey is the key of a Secret under which the kubeconfig is kept.
const secretKey = "kubeconfig"

// secretStore is a Secret, reached by the access that is found without configuration.
type secretStore struct {
	name, namespace string
	dial            dialFunc
	client          dynamic.Interface // nil until first used
}

func (s *secretStore) String() string { return "Secret " + s.namespace + "/" + s.name }

func (s *secretStore) resource() (dynamic.ResourceInterface, error) {
	if s.client == nil {
		config, err := found()
		if err != nil {
			return nil, fmt.Errorf("reach %s: %w", s, err)
		}
		config.Dial = s.dial
		if s.client, err = dynamic.NewForConfig(config); err != nil {
			return nil, err
		}
	}
	return s.client.Resource(secrets).Namespace(s.namespace), nil
}

func (s *secretStore) load(ctx context.Context) ([]byte, error) {
	r, err := s.resource()
	if err != nil {
		return nil, err
	}
	secret, err := r.Get(ctx, s.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s, err)
	}
	text, ok, err := unstructured.NestedString(secret.Object, "data", secretKey)
	if err != nil || !ok || text == "" {
		return nil, fmt.Errorf("%s has no key %q", s, secretKey)
	}
	return base64.StdEncoding.DecodeString(text)
}

func (s *secretStore) save(ctx context.Context, kubeconfig []byte) error {
	r, err := s.resource()
	if err != nil {
		return err
	}
	value := base64.StdEncoding.EncodeToString(kubeconfig)
	secret, err := r.Get(ctx, s.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = r.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret",
			"metadata": map[string]any{"name": s.name, "namespace": s.namespace},
			"data":     map[string]any{secretKey: value},
		}}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	if err := unstructured.SetNestedField(secret.Object, value, "data", secretKey); err != nil {
		return err
	}
	_, err = r.Update(ctx, secret, metav1.UpdateOptions{}) // with its version: one that somebody else changed is left alone
	return err
}

// serviceAccountNamespace is where Kubernetes puts the namespace of a pod's service account.
const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

func secretNamespace(configured string) string {
	if configured != "" {
		return configured
	}
	if ns := os.Getenv("POD_NAMESPACE"); ns != "" {
		return ns
	}
	if raw, err := os.ReadFile(serviceAccountNamespace); err == nil {
		if ns := strings.TrimSpace(string(raw)); ns != "" {
			return ns
		}
	}
	return "default"
}
