// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"
)

// Network says what the configuration wants of the host's network devices. The zero value wants nothing.
type Network struct {
	Bridges []string // that have to be there, for network plugin providernet
	Managed []string // names of networks that the daemon makes
}

// networks judges what the configured networks take. What is missing keeps machines of that network alone from starting.
func (f *found) networks() []Item {
	const name = "networks"
	if !f.onLinux() || len(f.Network.Bridges)+len(f.Network.Managed) == 0 {
		return nil
	}
	lookPath, root := f.Probes.Finder.LookPath, f.Probes.Finder.FS
	if lookPath == nil {
		lookPath = exec.LookPath
	}
	if root == nil {
		root = os.DirFS("/")
	}
	var items []Item
	if len(f.Network.Managed) > 0 {
		if _, err := lookPath("nft"); err != nil {
			items = append(items, one(name, Warn, "nft is not found: no machine starts in "+strings.Join(f.Network.Managed, ", "),
				"install it (Debian: nftables)")...)
		}
	}
	for _, bridge := range f.Network.Bridges {
		if _, err := fs.Stat(root, path.Join("sys/class/net", bridge, "bridge")); err != nil {
			items = append(items, one(name, Warn, "there is no bridge "+bridge+": machines of its networks wait for it", "make it, or correct network.providernet.networks")...)
		}
	}
	if items == nil {
		items = one(name, OK, "what the networks of providernet need is there", "")
	}
	return items
}
