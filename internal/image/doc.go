// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

// Package image pulls operating-system images from OCI registries into a cache on disk and answers, without ever
// waiting for the network, which files a machine boots from. It exists because an image is gigabytes, arrives over a
// network that breaks, and must still be the very bytes its digest names when a guest boots from it.
//
// It understands the ironcore-image formats: one manifest for each platform, whose layers are raw files (root disk,
// kernel, initramfs, ...) told apart by media type. Layout below Options.Dir:
//
//	blobs/<algorithm>/<hex>   verified content: layers, configs, manifests and indexes, named by their digest
//	tags/<hex>                what a tag meant when it was last resolved (JSON), named by the SHA-256 of the reference
//	partial/                  downloads not finished (named by digest, resumed later) and temporary files
//
// A file enters blobs only by rename after its length and digest were proven and it was flushed. A later daemon reads it
// once more, in the background as if it were pulled, before it hands it out for the first time, and again whenever the
// file was touched since: disks rot, and a machine must not be made from what rotted.
//
// The cache is kept within a budget and off a reserve of free space. Images that no machine references go for that, the
// least recently used first; the modification time of an image's manifest is when it was last used, to the hour. Who
// references what is asked of the owner of the machines (Options.References) right before each removal. Removing is
// fail-closed: whatever could not be asked or read means that nothing is removed. An image that was handed out is safe
// from removal for a few minutes besides, and what a pull needs for as long as it runs.
//
// The package must never let a partial download pass for a complete one, speak plain HTTP to a host that was not
// listed for it, run a credential helper that was not allowed, keep a goroutine of its own while nothing is pulled, or
// remove an image that a machine references, however full the disk is.
package image
