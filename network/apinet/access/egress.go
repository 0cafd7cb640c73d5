// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"sigs.k8s.io/yaml"
)

// egressName is the entry of an EgressSelectorConfiguration that says how the API server is reached.
const egressName = "cluster"

// egressConfiguration is the part of Kubernetes' EgressSelectorConfiguration (apiserver.k8s.io/v1beta1) that a client
// can follow.
type egressConfiguration struct {
	APIVersion       string `json:"apiVersion"`
	Kind             string `json:"kind"`
	EgressSelections []struct {
		Name       string           `json:"name"`
		Connection egressConnection `json:"connection"`
	} `json:"egressSelections"`
}

type egressConnection struct {
	ProxyProtocol string           `json:"proxyProtocol"`
	Transport     *egressTransport `json:"transport,omitempty"`
}

type egressTransport struct {
	TCP *struct {
		URL       string     `json:"url"`
		TLSConfig *egressTLS `json:"tlsConfig,omitempty"`
	} `json:"tcp,omitempty"`
	UDS *struct {
		UDSName string `json:"udsName"`
	} `json:"uds,omitempty"`
}

type egressTLS struct {
	CABundle   string `json:"caBundle,omitempty"`
	ClientKey  string `json:"clientKey,omitempty"`
	ClientCert string `json:"clientCert,omitempty"`
}

// loadEgress returns how to reach the API server. HTTP CONNECT by TCP, TLS or a Unix socket is possible.
func loadEgress(path string, direct dialFunc) (dialFunc, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var config egressConfiguration
	if err := yaml.UnmarshalStrict(raw, &config); err != nil {
		return nil, err
	}
	if config.Kind != "EgressSelectorConfiguration" {
		return nil, fmt.Errorf("kind is %q, want EgressSelectorConfiguration", config.Kind)
	}
	for _, s := range config.EgressSelections {
		if s.Name != egressName {
			continue
		}
		switch s.Connection.ProxyProtocol {
		case "Direct":
			return direct, nil
		case "HTTPConnect":
			toProxy, err := proxyDial(s.Connection.Transport, direct)
			if err != nil {
				return nil, err
			}
			return throughProxy(toProxy), nil
		}
		return nil, fmt.Errorf("proxyProtocol %q is not supported, Direct and HTTPConnect are", s.Connection.ProxyProtocol)
	}
	return direct, nil
}

// proxyDial returns how to reach the proxy itself.
func proxyDial(t *egressTransport, direct dialFunc) (func(ctx context.Context) (net.Conn, error), error) {
	switch {
	case t != nil && t.UDS != nil && t.UDS.UDSName != "":
		return func(ctx context.Context) (net.Conn, error) { return direct(ctx, "unix", t.UDS.UDSName) }, nil
	case t != nil && t.TCP != nil:
		u, err := url.Parse(t.TCP.URL)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("transport.tcp.url %q is no URL with a host", t.TCP.URL)
		}
		if u.Scheme == "http" {
			return func(ctx context.Context) (net.Conn, error) { return direct(ctx, "tcp", u.Host) }, nil
		}
		config, err := proxyTLS(t.TCP.TLSConfig, u.Hostname())
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) (net.Conn, error) {
			conn, err := direct(ctx, "tcp", u.Host)
			if err != nil {
				return nil, err
			}
			secured := tls.Client(conn, config)
			if err := secured.HandshakeContext(ctx); err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			return secured, nil
		}, nil
	}
	return nil, errors.New("transport needs tcp.url or uds.udsName")
}

func proxyTLS(t *egressTLS, host string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if t == nil {
		return config, nil
	}
	if t.CABundle != "" {
		raw, err := os.ReadFile(t.CABundle)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("%s holds no certificate", t.CABundle)
		}
	}
	if t.ClientCert != "" {
		pair, err := tls.LoadX509KeyPair(t.ClientCert, t.ClientKey)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// proxyTimeout bounds what a proxy may take to answer CONNECT.
const proxyTimeout = 30 * time.Second

func throughProxy(dial func(ctx context.Context) (net.Conn, error)) dialFunc {
	return func(ctx context.Context, _, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, proxyTimeout)
		defer cancel()
		conn, err := dial(ctx)
		if err != nil {
			return nil, fmt.Errorf("reach the egress proxy: %w", err)
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		err = connectTo(conn, address)
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("egress proxy: %w", err), conn.Close())
		}
		return conn, nil
	}
}

func connectTo(conn net.Conn, address string) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", address, address); err != nil {
		return err
	}
	reader := bufio.NewReader(conn)
	answer, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("CONNECT %s: %s", address, answer.Status)
	}
	if reader.Buffered() > 0 {
		return errors.New("the proxy sent more than its answer")
	}
	return nil
}
