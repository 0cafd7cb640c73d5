// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package access gives the network plugin a client of its API server: from a kubeconfig, or by a client certificate
// that is asked for with a bootstrap token, kept, and renewed while the program runs. It exists so that a node needs
// nothing but a short-lived token to join, and never a restart to stay.
//
// The package must never write a key to a file that others can read, never log or return one, never give up for good
// (what is missing now may be put there later), and never replace a certificate that is good by anything but a newer
// one.
package access

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Options say where access comes from. The names are those of the flags, less "--apinet-".
type Options struct {
	// Node is part of the subject that is asked for:
	// CN "networking.ironcore.dev:system:networkplugin:<node>", O "networking.ironcore.dev:system:networkplugins".
	Node string
	// Kubeconfig is read, and with Bootstrap or Rotate also written. Empty: $KUBECONFIG, the cluster this runs in, and
	// ~/.kube/config, in that order; they are never written.
	Kubeconfig string
	// SecretName and SecretNamespace name a Secret, key "kubeconfig", that takes the place of the file. It is reached
	// by the default access above. The namespace defaults to $POD_NAMESPACE, that of the service account, "default".
	SecretName, SecretNamespace string
	Bootstrap                   string // kubeconfig with a bootstrap token; needed only while there is no good certificate
	Rotate                      bool   // renew the certificate at 70 to 90 % of its life
	EgressSelectorConfig        string // file of kind EgressSelectorConfiguration; its "cluster" entry is used
	QPS                         float32
	Burst                       int

	Logger *slog.Logger     // default: none
	Now    func() time.Time // default: time.Now
	// RequestTimeout is how long to wait for a certificate; default 30s.
	RequestTimeout time.Duration
	// RetryInterval is the longest pause between two tries; default 30s.
	RetryInterval time.Duration
}

// Access implements the Access of package apinet.
type Access struct {
	o     Options
	store store // nil: nothing is kept
	dial  dialFunc

	mu      sync.Mutex
	err     error
	current *tls.Certificate
	expires time.Time
	dropAll func() // closes the connections made with an earlier certificate
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// New checks the options as far as that is possible without asking anybody.
func New(o Options) (*Access, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = 30 * time.Second
	}
	if o.RetryInterval == 0 {
		o.RetryInterval = 30 * time.Second
	}
	switch {
	case o.Node == "":
		return nil, errors.New("the name of the node is needed (--apinet-node-name)")
	case o.Kubeconfig != "" && o.SecretName != "":
		return nil, errors.New("a kubeconfig is kept in a file or in a Secret: set --apinet-kubeconfig or --apinet-kubeconfig-secret-name, not both")
	case o.SecretName == "" && o.SecretNamespace != "":
		return nil, errors.New("--apinet-kubeconfig-secret-namespace needs --apinet-kubeconfig-secret-name")
	case (o.Bootstrap != "" || o.Rotate) && o.Kubeconfig == "" && o.SecretName == "":
		return nil, errors.New("a certificate needs a place to be kept: set --apinet-kubeconfig or --apinet-kubeconfig-secret-name")
	}
	a := &Access{o: o, err: errors.New("not connected yet")}
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	a.dial = dialer.DialContext
	if o.EgressSelectorConfig != "" {
		dial, err := loadEgress(o.EgressSelectorConfig, dialer.DialContext)
		if err != nil {
			return nil, fmt.Errorf("read egress selector configuration %s: %w", o.EgressSelectorConfig, err)
		}
		a.dial = dial
	}
	switch {
	case o.SecretName != "":
		a.store = &secretStore{name: o.SecretName, namespace: secretNamespace(o.SecretNamespace), dial: a.dial}
	case o.Kubeconfig != "":
		a.store = fileStore(o.Kubeconfig)
	}
	return a, nil
}

// Err says why there is no access now, nil if there is.
func (a *Access) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil && a.current != nil && !a.o.Now().Before(a.expires) {
		return fmt.Errorf("the client certificate expired on %s and could not be renewed", a.expires.UTC().Format(time.RFC3339))
	}
	return a.err
}

// Expires is when the client certificate in use does; zero if there is none.
func (a *Access) Expires() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.expires
}

// Connect waits for access and returns a client. With Rotate the certificate is renewed until ctx ends.
func (a *Access) Connect(ctx context.Context) (dynamic.Interface, error) {
	pause := min(time.Second, a.o.RetryInterval)
	for {
		client, err := a.connect(ctx)
		a.mu.Lock()
		a.err = err
		a.mu.Unlock()
		if err == nil {
			return client, nil
		}
		a.o.Logger.Error("no access to the API server of ironcore-net", "error", err, "again", pause)
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
		pause = min(2*pause, a.o.RetryInterval)
	}
}

func (a *Access) connect(ctx context.Context) (dynamic.Interface, error) {
	if a.o.Bootstrap == "" && !a.o.Rotate {
		config, err := a.plain(ctx)
		if err != nil {
			return nil, err
		}
		config.Dial = a.dial
		return a.client(config)
	}
	config, pair, err := a.credentials(ctx)
	if err != nil {
		return nil, err
	}
	a.use(pair)
	rotating, err := a.rotating(config)
	if err != nil {
		return nil, err
	}
	client, err := a.client(rotating)
	if err == nil && a.o.Rotate {
		go a.renew(ctx, config)
	}
	return client, err
}

func (a *Access) client(config *rest.Config) (dynamic.Interface, error) {
	config.QPS, config.Burst = a.o.QPS, a.o.Burst
	config.UserAgent = "cloud-hypervisor-provider"
	return dynamic.NewForConfig(config)
}

// credentials returns what is kept if it is good, and asks for a certificate otherwise.
func (a *Access) credentials(ctx context.Context) (*rest.Config, tls.Certificate, error) {
	config, pair, kept := a.kept(ctx)
	if kept == nil {
		return config, pair, nil
	}
	if a.o.Bootstrap == "" {
		return nil, pair, fmt.Errorf("%w, and there is no bootstrap kubeconfig to ask for one (--apinet-bootstrap-kubeconfig)", kept)
	}
	a.o.Logger.Info("asking for a client certificate", "why", kept)
	bootstrap, err := loadFile(a.o.Bootstrap)
	if err != nil {
		return nil, pair, fmt.Errorf("%w; bootstrap kubeconfig: %w", kept, err)
	}
	asking := rest.CopyConfig(bootstrap)
	asking.Dial = a.dial
	return a.request(ctx, asking, bootstrap)
}

// errNoCertificate begins what is said of a kubeconfig that gives no access.
var errNoCertificate = errors.New("no good client certificate is kept")

func (a *Access) kept(ctx context.Context) (*rest.Config, tls.Certificate, error) {
	raw, err := a.store.load(ctx)
	if err != nil {
		return nil, tls.Certificate{}, fmt.Errorf("%w: %w", errNoCertificate, err)
	}
	config, err := parse(raw)
	if err != nil {
		return nil, tls.Certificate{}, fmt.Errorf("%w: %s: %w", errNoCertificate, a.store, err)
	}
	pair, err := certificate(config)
	if err != nil {
		return nil, pair, fmt.Errorf("%w: %s: %w", errNoCertificate, a.store, err)
	}
	if now := a.o.Now(); !now.Before(pair.Leaf.NotAfter) {
		return nil, pair, fmt.Errorf("%w: the one in %s expired on %s", errNoCertificate, a.store, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return config, pair, nil
}

// request asks for a certificate by one access, and keeps it, with the server of origin, before it is used.
func (a *Access) request(ctx context.Context, asking, origin *rest.Config) (*rest.Config, tls.Certificate, error) {
	client, err := a.client(asking)
	if err != nil {
		return nil, tls.Certificate{}, err
	}
	key, cert, err := requestCertificate(ctx, client, a.o.Node, a.o.RequestTimeout)
	if err != nil {
		return nil, tls.Certificate{}, fmt.Errorf("ask for a client certificate: %w", err)
	}
	raw, err := compose(origin, cert, key)
	if err != nil {
		return nil, tls.Certificate{}, err
	}
	if err := a.store.save(ctx, raw); err != nil {
		return nil, tls.Certificate{}, fmt.Errorf("keep the client certificate in %s: %w", a.store, err)
	}
	renewed, err := parse(raw)
	if err != nil {
		return nil, tls.Certificate{}, err
	}
	pair, err := certificate(renewed)
	if err != nil {
		return nil, pair, fmt.Errorf("the certificate that was issued: %w", err)
	}
	a.o.Logger.Info("client certificate issued", "subject", pair.Leaf.Subject.String(), "expires", pair.Leaf.NotAfter, "kept", a.store)
	return renewed, pair, nil
}

// use makes a certificate the one of all connections from now on.
func (a *Access) use(pair tls.Certificate) {
	a.mu.Lock()
	a.current, a.expires, a.err = &pair, pair.Leaf.NotAfter, nil
	drop := a.dropAll
	a.mu.Unlock()
	if drop != nil {
		drop()
	}
}

// renew asks for the next certificate in time, as the identity of the one in use; when that has expired, by the
// bootstrap kubeconfig.
func (a *Access) renew(ctx context.Context, config *rest.Config) {
	for {
		a.mu.Lock()
		leaf := a.current.Leaf
		a.mu.Unlock()
		if sleep(ctx, renewalAt(leaf.NotBefore, leaf.NotAfter, rand.Float64()).Sub(a.o.Now())) != nil {
			return
		}
		pause := min(time.Second, a.o.RetryInterval)
		for {
			next, pair, err := a.next(ctx, config)
			if err == nil {
				config = next
				a.use(pair)
				break
			}
			a.o.Logger.Warn("client certificate not renewed", "error", err, "expires", leaf.NotAfter, "again", pause)
			if sleep(ctx, pause) != nil {
				return
			}
			pause = min(2*pause, a.o.RetryInterval)
		}
	}
}

func (a *Access) next(ctx context.Context, config *rest.Config) (*rest.Config, tls.Certificate, error) {
	if !a.o.Now().Before(a.Expires()) {
		return a.credentials(ctx)
	}
	asking, err := a.rotating(config)
	if err != nil {
		return nil, tls.Certificate{}, err
	}
	return a.request(ctx, asking, config)
}

// renewalAt is at 70 to 90 % of a certificate's life, by chance, so that a fleet does not ask at once.
func renewalAt(from, to time.Time, chance float64) time.Time {
	return from.Add(time.Duration(float64(to.Sub(from)) * (0.7 + 0.2*chance)))
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
