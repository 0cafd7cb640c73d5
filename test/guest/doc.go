// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package guest builds the small real Linux guest that tests and the demo boot, and packs it as an OCI image.
//
// It exists because a provider of virtual machines is only proven by a machine that boots, finds its Ignition
// payload, keeps its disk and reacts to its power button. The guest is Debian's cloud kernel, an initramfs with the
// program in ./init as process 1 and Debian's static busybox, and an ext4 root disk that counts boots. Everything is
// made without root and without installing anything; the result depends only on its inputs, byte for byte.
//
// It must never be imported by the provider, and never write outside the cache directory it is given.
package guest
