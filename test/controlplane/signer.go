// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// signerPoll is how often requests are looked for.
const signerPoll = 200 * time.Millisecond

// signer stands in for the part of kube-controller-manager that signs requests for client certificates, and for
// whoever approves them.
type signer struct {
	cp     *ControlPlane
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	on   bool
	life time.Duration
}

// SetSigner says whether requests for client certificates are approved and signed, and how long certificates live from
// now on: at least some seconds. A new control plane signs for a day.
func (cp *ControlPlane) SetSigner(on bool, life time.Duration) {
	cp.signer.mu.Lock()
	defer cp.signer.mu.Unlock()
	cp.signer.on, cp.signer.life = on, life
}

func startSigner(t testing.TB, cp *ControlPlane) *signer {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s := &signer{cp: cp, cancel: cancel, done: make(chan struct{}), on: true, life: testLife}
	go func() {
		defer close(s.done)
		for {
			if on, life := s.settings(); on {
				if err := s.pass(ctx, life); err != nil && ctx.Err() == nil && !outage(err) {
					t.Logf("signer: %v", err)
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(signerPoll):
			}
		}
	}()
	return s
}

// outage reports whether an error is what is to be expected while a test has stopped the API server.
func outage(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsConflict(err)
}

func (s *signer) stop() {
	s.cancel()
	<-s.done
}

func (s *signer) settings() (bool, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on, s.life
}

// pass approves and signs what is open.
func (s *signer) pass(ctx context.Context, life time.Duration) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var list certificatesv1.CertificateSigningRequestList
	if err := s.cp.client.List(ctx, &list); err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		request := &list.Items[i]
		if request.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName || len(request.Status.Certificate) > 0 ||
			has(request, certificatesv1.CertificateDenied) || has(request, certificatesv1.CertificateFailed) {
			continue
		}
		if err := s.serve(ctx, request, life); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", request.Name, err))
		}
	}
	return errors.Join(errs...)
}

func has(request *certificatesv1.CertificateSigningRequest, condition certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(request.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == condition
	})
}

// serve approves a request unless somebody has, and signs it with the rights it asks for.
func (s *signer) serve(ctx context.Context, request *certificatesv1.CertificateSigningRequest, life time.Duration) error {
	if !has(request, certificatesv1.CertificateApproved) {
		request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test", Message: "approved by the test",
			LastUpdateTime: metav1.Now(),
		})
		if err := s.cp.client.SubResource("approval").Update(ctx, request); err != nil {
			return fmt.Errorf("approve: %w", err)
		}
	}
	block, _ := pem.Decode(request.Spec.Request)
	if block == nil {
		return errors.New("the request is not PEM")
	}
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return fmt.Errorf("parse: %w", err)
	}
	if err := asked.CheckSignature(); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	template := &x509.Certificate{Subject: asked.Subject, NotBefore: time.Now().Add(-time.Second)}
	for _, usage := range request.Spec.Usages {
		switch usage {
		case certificatesv1.UsageDigitalSignature:
			template.KeyUsage |= x509.KeyUsageDigitalSignature
		case certificatesv1.UsageKeyEncipherment:
			template.KeyUsage |= x509.KeyUsageKeyEncipherment
		case certificatesv1.UsageClientAuth:
			template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
		default:
			return fmt.Errorf("usage %q is not one of a client", usage)
		}
	}
	der, err := s.cp.ca.sign(template, asked.PublicKey, life)
	if err != nil {
		return fmt.Errorf("sign: %w", err)
	}
	request.Status.Certificate = encodeCert(der)
	if err := s.cp.client.Status().Update(ctx, request); err != nil {
		return fmt.Errorf("hand out: %w", err)
	}
	return nil
}
