// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	// testLife is how long certificates live that no test looks at.
	testLife = 24 * time.Hour
	// clockSkew is how much earlier than now they begin.
	clockSkew = time.Minute
)

// authority is a certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its certificate, as PEM
}

func newAuthority(dir, name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	a := &authority{key: key, file: filepath.Join(dir, name+".crt")}
	a.cert = template // it signs itself
	raw, err := a.sign(template, key.Public(), testLife)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(raw); err != nil {
		return nil, err
	}
	return a, os.WriteFile(a.file, encodeCert(raw), 0o600)
}

// sign makes a certificate that is valid from now on. Templates that say when they begin keep that.
func (a *authority) sign(template *x509.Certificate, key crypto.PublicKey, life time.Duration) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	now := time.Now()
	if template.NotBefore.IsZero() {
		template.NotBefore = now.Add(-clockSkew)
	}
	template.NotAfter = now.Add(life)
	return x509.CreateCertificate(rand.Reader, template, a.cert, key, a.key)
}

// pair is a certificate with its key, as PEM.
type pair struct{ cert, key []byte }

// files writes the pair as NAME.crt and NAME.key.
func (p pair) files(dir, name string) (cert, key string, err error) {
	cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if err := os.WriteFile(cert, p.cert, 0o600); err != nil {
		return "", "", err
	}
	return cert, key, os.WriteFile(key, p.key, 0o600)
}

func (a *authority) issue(template *x509.Certificate) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	raw, err := a.sign(template, key.Public(), testLife)
	if err != nil {
		return pair{}, err
	}
	encoded, err := encodeKey(key)
	return pair{cert: encodeCert(raw), key: encoded}, err
}

// client issues a certificate for a user.
func (a *authority) client(user string, groups ...string) (pair, error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// server issues a certificate for a server on loopback that has more names.
func (a *authority) server(name string, more ...string) (pair, error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		DNSNames:    append([]string{"localhost"}, more...),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
