// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package ceph

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/machine"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/volume"
)

// Keys of a connection, as ironcore's providers of Ceph volumes write them.
const (
	attributeImage    = "image"    // "pool/image"
	attributeMonitors = "monitors" // "host:port,host:port"
	secretUser        = "userID"
	secretKey         = "userKey"
	secretEncryption  = "encryptionKey"
)

// Limits of what is accepted.
const (
	maxMonitors   = 32
	keyBytes      = 28  // a Ceph key: 12 bytes of header, 16 of AES key
	maxPassphrase = 512 // bytes; what LUKS tools accept
	maxBytes      = 1 << 50
)

var (
	imageName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,95}$`)
	hostName  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?$`)
	userName  = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
)

// parse reads a connection; errors name the field below field.
func parse(field string, c *machine.Connection) (Image, error) {
	if c == nil {
		return Image{}, machine.InvalidField(field, "must be set")
	}
	if c.Handle == "" {
		return Image{}, machine.InvalidField(field+".handle", "must not be empty")
	}
	if c.EffectiveStorageBytes <= 0 || c.EffectiveStorageBytes > maxBytes {
		return Image{}, machine.InvalidField(field+".effective_storage_bytes", "%d is out of range, 1 to %d bytes are possible", c.EffectiveStorageBytes, int64(maxBytes))
	}
	image := Image{User: string(c.SecretData[secretUser]), Key: string(c.SecretData[secretKey])}
	var err error
	if image.Pool, image.Name, err = parseImage(field+".attributes["+attributeImage+"]", c.Attributes[attributeImage]); err != nil {
		return Image{}, err
	}
	if image.Monitors, err = parseMonitors(field+".attributes["+attributeMonitors+"]", c.Attributes[attributeMonitors]); err != nil {
		return Image{}, err
	}
	if !userName.MatchString(image.User) {
		return Image{}, machine.InvalidField(field+".secret_data["+secretUser+"]", "must be the name of a Ceph user without \"client.\"")
	}
	if raw, err := base64.StdEncoding.DecodeString(image.Key); err != nil || len(raw) != keyBytes {
		return Image{}, machine.InvalidField(field+".secret_data["+secretKey+"]", "is no Ceph key: that is the base64 form of %d bytes", keyBytes)
	}
	if image.Passphrase, err = parsePassphrase(field, c); err != nil {
		return Image{}, err
	}
	image.Limits, err = volume.ParseLimits(field+".attributes", c.Attributes)
	return image, err
}

func parsePassphrase(field string, c *machine.Connection) (string, error) {
	for key := range c.EncryptionData {
		if key != secretEncryption {
			// What is not understood may mean more protection than would be given.
			return "", machine.InvalidField(fmt.Sprintf("%s.encryption_data[%s]", field, key), "is not known, %s is", secretEncryption)
		}
	}
	passphrase, asked := c.EncryptionData[secretEncryption]
	if n := len(passphrase); asked && (n == 0 || n > maxPassphrase) {
		return "", machine.InvalidField(field+".encryption_data["+secretEncryption+"]", "has %d bytes, 1 to %d are possible", n, maxPassphrase)
	}
	return string(passphrase), nil
}

func parseImage(field, text string) (pool, name string, err error) {
	pool, name, both := strings.Cut(text, "/")
	if !both || !imageName.MatchString(pool) || !imageName.MatchString(name) {
		return "", "", machine.InvalidField(field, "%q is not of the form pool/image", text)
	}
	return pool, name, nil
}

func parseMonitors(field, text string) ([]string, error) {
	if text == "" {
		return nil, machine.InvalidField(field, "must not be empty")
	}
	parts := strings.Split(text, ",")
	if len(parts) > maxMonitors {
		return nil, machine.InvalidField(field, "has %d entries, at most %d are possible", len(parts), maxMonitors)
	}
	monitors := make([]string, len(parts))
	for i, part := range parts {
		part = strings.TrimSpace(part)
		if _, _, err := splitMonitor(part); err != nil {
			return nil, machine.InvalidField(field, "%q is not of the form host:port", part)
		}
		monitors[i] = part
	}
	return monitors, nil
}

func splitMonitor(text string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(text)
	if err != nil {
		return "", "", err
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", "", fmt.Errorf("%q is no port", port)
	}
	if _, err := netip.ParseAddr(host); err != nil && !hostName.MatchString(host) {
		return "", "", fmt.Errorf("%q is no host", host)
	}
	return host, port, nil
}
