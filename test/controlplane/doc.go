// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package controlplane runs a real control plane for tests: etcd and kube-apiserver, with roles, bootstrap tokens and
// somebody who approves and signs certificate requests; on request also ironcore's aggregated API server and controller
// manager, machinepoollets, and ironcore-net's NetworkInterface as a resource.
//
//	cp := controlplane.Start(t, controlplane.Options{NetworkInterfaces: true})
//	file := cp.BootstrapKubeconfig(t, controlplane.NetworkPlugins) // give it to what is under test
//	cp.SetSigner(true, 2*time.Minute)                              // certificates that live for two minutes
//	cp.RestartAPIServer(t)
//
// It exists because a client of an API server, and a provider behind a poollet, are only proven by the real ones. It is
// a module of its own: the programs and their clients bring two thousand packages that the daemon must not depend on.
//
// Everything listens on loopback only, on ports of its own, in one directory below the one for temporary files, and is
// gone when the test ends; the processes end with the test's even when that is killed. It must never be imported by the
// daemon, and never reach a cluster that it did not start. Where the programs are not in the cache, Start builds them.
package controlplane
