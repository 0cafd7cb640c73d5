// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/connrotation"
)

// plain is access by what was configured, or by what is found.
func (a *Access) plain(ctx context.Context) (*rest.Config, error) {
	if a.store == nil {
		return found()
	}
	raw, err := a.store.load(ctx)
	if err != nil {
		return nil, err
	}
	config, err := parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.store, err)
	}
	return config, nil
}

// found is access by $KUBECONFIG, the cluster this runs in, or ~/.kube/config.
func found() (*rest.Config, error) {
	if os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		config, err := rest.InClusterConfig()
		if err == nil || !errors.Is(err, rest.ErrNotInCluster) {
			return config, err
		}
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no kubeconfig in $KUBECONFIG or ~/.kube/config, and not in a cluster: %w", err)
	}
	return config, nil
}

func loadFile(path string) (*rest.Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	config, err := parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

func parse(raw []byte) (*rest.Config, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	return config, nil
}

// certificate returns the client certificate of a kubeconfig.
func certificate(config *rest.Config) (tls.Certificate, error) {
	if err := rest.LoadTLSFiles(config); err != nil {
		return tls.Certificate{}, err
	}
	if len(config.CertData) == 0 || len(config.KeyData) == 0 {
		return tls.Certificate{}, errors.New("the kubeconfig holds no client certificate")
	}
	return tls.X509KeyPair(config.CertData, config.KeyData)
}

// compose makes a kubeconfig of a certificate for the server of origin, under the names that Kubernetes' own
// components use.
func compose(origin *rest.Config, cert, key []byte) ([]byte, error) {
	origin = rest.CopyConfig(origin)
	if err := rest.LoadTLSFiles(origin); err != nil {
		return nil, err
	}
	cluster := &clientcmdapi.Cluster{
		Server: origin.Host + origin.APIPath, TLSServerName: origin.ServerName,
		InsecureSkipTLSVerify: origin.Insecure, CertificateAuthorityData: origin.CAData,
	}
	return clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"default-cluster": cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"default-auth": {ClientCertificateData: cert, ClientKeyData: key}},
		Contexts:       map[string]*clientcmdapi.Context{"default-context": {Cluster: "default-cluster", AuthInfo: "default-auth"}},
		CurrentContext: "default-context",
	})
}

// rotating is access whose client certificate is at any time the one in use. Its first caller's connections are closed
// when the certificate changes: the API server judges a connection by the one it was made with.
func (a *Access) rotating(config *rest.Config) (*rest.Config, error) {
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, err
	}
	t := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: config.ServerName, InsecureSkipVerify: config.Insecure, //nolint:gosec // as the kubeconfig says
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.current, nil
		},
	}
	if len(config.CAData) > 0 {
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(config.CAData) {
			return nil, errors.New("the kubeconfig's certificate authority holds no certificate")
		}
	}
	dialer := connrotation.NewDialer(connrotation.DialFunc(a.dial))
	transport := &http.Transport{
		TLSClientConfig: t, DialContext: dialer.DialContext, ForceAttemptHTTP2: true, Proxy: http.ProxyFromEnvironment,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: 4,
	}
	a.mu.Lock()
	if earlier := a.dropAll; earlier == nil {
		a.dropAll = dialer.CloseAll
	}
	a.mu.Unlock()
	return &rest.Config{Host: config.Host, APIPath: config.APIPath, Transport: transport}, nil
}
