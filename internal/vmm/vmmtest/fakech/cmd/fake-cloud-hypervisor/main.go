// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Command fake-cloud-hypervisor is a Cloud Hypervisor without guests for tests; see package fakech.
package main

import (
	"os"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/vmm/vmmtest/fakech"
)

func main() {
	os.Exit(fakech.Main(os.Args[1:], os.Stdout, os.Stderr))
}
