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
// A file enters blobs only by rename after its length and digest were proven and it was flushed. Therefore existence
// and length are enough to trust it later; Verify reads everything again for those who doubt the disk.
//
// The package must never let a partial download pass for a complete one, speak plain HTTP to a host that was not
// listed for it, run a credential helper that was not allowed, keep a goroutine while nothing is pulled, or decide
// when an image may be deleted.
package image
