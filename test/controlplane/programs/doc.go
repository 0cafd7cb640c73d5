// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package programs builds the programs of a control plane from their released modules and keeps them: etcd,
// kube-apiserver, and of ironcore the API server, the controller manager, the machinepoollet and irictl-machine.
//
// It exists because no distribution has them in versions that fit, and because building them takes minutes that nobody
// wants to spend twice. What is built lies in a cache under a key made of the versions of all their modules, the
// version of Go and the platform; several processes may ask at once, one builds and the others wait.
//
// It must never write outside its cache, and never take a program that was built from something else for the right
// one. It imports the standard library only, so that building can begin before anything else is compiled.
package programs
