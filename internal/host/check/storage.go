// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/host"
)

// Dir is what is known about a directory.
type Dir struct {
	Nearest  string      // the directory itself, or its nearest parent that exists
	Exists   bool        // Nearest is the directory itself
	Mode     fs.FileMode // of Nearest
	UID      int         // owner of Nearest
	Writable bool        // Nearest may be written to by this process
}

func lookAtDir(path string) (Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Dir{}, err
	}
	d := Dir{Nearest: path, Exists: true}
	info, err := os.Stat(path)
	for errors.Is(err, fs.ErrNotExist) && d.Nearest != filepath.Dir(d.Nearest) {
		d.Nearest, d.Exists = filepath.Dir(d.Nearest), false
		info, err = os.Stat(d.Nearest)
	}
	if err != nil {
		return Dir{}, err
	}
	if !info.IsDir() {
		return Dir{}, fmt.Errorf("%s is not a directory", d.Nearest)
	}
	d.Mode = info.Mode()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		d.UID = int(st.Uid)
	}
	d.Writable = unix.Access(d.Nearest, unix.W_OK|unix.X_OK) == nil
	return d, nil
}

func (f *found) stateDir() []Item   { return f.dir("state-directory", f.StateDir) }
func (f *found) runtimeDir() []Item { return f.dir("runtime-directory", f.RuntimeDir) }

func (f *found) dir(name, path string) []Item {
	d, err := f.Probes.Dir(path)
	uid := f.Probes.UID()
	switch {
	case err != nil:
		return one(name, Fail, fmt.Sprintf("%s: %v", path, err), "make it a directory, or configure another")
	case !d.Exists && !d.Writable:
		return one(name, Fail, fmt.Sprintf("%s does not exist and cannot be made: user %d may not write to %s", path, uid,
			d.Nearest), "run as root, or configure a directory you own")
	case !d.Exists:
		return one(name, OK, fmt.Sprintf("%s does not exist yet; the daemon makes it", path), "")
	case !d.Writable:
		return one(name, Fail, fmt.Sprintf("%s: user %d may not write to it (mode %04o, owner %d)", path, uid,
			d.Mode.Perm(), d.UID), "run as its owner, or configure a directory you own")
	case d.UID != uid:
		return one(name, Warn, fmt.Sprintf("%s belongs to user %d, not to user %d who runs this", path, d.UID, uid),
			fmt.Sprintf("chown -R %d %s", uid, path))
	case d.Mode.Perm()&0o027 != 0:
		return one(name, Warn, fmt.Sprintf("%s has mode %04o: others may enter it or change it", path, d.Mode.Perm()),
			"chmod 0750 "+path)
	default:
		return one(name, OK, fmt.Sprintf("%s, mode %04o", path, d.Mode.Perm()), "")
	}
}

// Below fewDisk an image and a disk of usual size do not fit; below noDisk the daemon itself soon cannot write.
const (
	fewDisk  = 10 << 30
	noDisk   = 1 << 30
	fewInode = 10_000 // a machine takes about twenty

	// slowSync bounds from above how many machines can be created a second; more than this is felt.
	slowSync = 100 * time.Millisecond
)

func (f *found) disk() []Item {
	s := f.storage
	var items []Item
	if s.TotalBytes > 0 {
		items = f.space()
	}
	if f.storageErr != nil {
		return append(items, one("storage", Fail, f.storageErr.Error(), "make the state directory writable, or configure "+
			"another")...)
	}
	items = append(items, f.durability()...)
	if s.Reflink.OK {
		items = append(items, one("reflink", OK, "copies of images share their blocks", "")...)
	} else {
		items = append(items, one("reflink", Warn, fmt.Sprintf("%s (%s): each disk is a full copy of its image",
			s.Reflink.Reason, s.Filesystem), "works, but takes time and space; put the state directory on XFS or Btrfs")...)
	}
	if !f.onLinux() {
		return items
	}
	if s.DirectIO.OK {
		return append(items, one("direct-io", OK, "O_DIRECT works", "")...)
	}
	return append(items, one("direct-io", Warn, s.DirectIO.Reason+" ("+s.Filesystem+")",
		"disks go through the page cache of the server; use ext4, XFS or Btrfs")...)
}

func (f *found) space() []Item {
	s := f.storage
	detail := fmt.Sprintf("%s of %s free (%s, %s)", size(s.FreeBytes), size(s.TotalBytes), s.Filesystem, s.Probed)
	switch {
	case s.FreeBytes < noDisk:
		return one("disk-space", Fail, detail, "free some: without 1 GiB machines cannot be created")
	case s.FreeBytes < fewDisk:
		return one("disk-space", Warn, detail, "free some: 10 GiB is the least for images and disks")
	case s.FreeFiles > 0 && s.FreeFiles < fewInode:
		return one("disk-space", Warn, fmt.Sprintf("%s, but only %d more files", detail, s.FreeFiles), "remove files you do "+
			"not need: the file system runs out of inodes")
	default:
		return one("disk-space", OK, detail, "")
	}
}

func (f *found) durability() []Item {
	sync := f.storage.Fsync
	took := sync.Took.Round(100 * time.Microsecond)
	switch {
	case !sync.OK:
		return one("fsync", Fail, sync.Reason, "use a file system that keeps what it is told to keep")
	case sync.Took > slowSync:
		return one("fsync", Warn, fmt.Sprintf("making a file durable took %v", took), "the disk is slow or busy: creating "+
			"machines will be, too")
	case f.storage.Filesystem == "tmpfs":
		return one("fsync", Warn, "the state directory is in memory (tmpfs) and lost at reboot", "configure a directory on "+
			"a disk")
	default:
		return one("fsync", OK, fmt.Sprintf("making a file durable took %v", took), "")
	}
}

// machineSocket is what a socket of a machine needs below the runtime directory: an id of 36 bytes, a slash and a name
// of at most 18.
const machineSocket = 55

func (f *found) sockets() []Item {
	const name, shorter = "socket-path", "configure a shorter path"
	if err := host.CheckSocketPath(f.SocketPath); err != nil {
		return one(name, Fail, err.Error(), shorter)
	}
	if room := host.SocketPathRoom(f.RuntimeDir); room < machineSocket {
		return one(name, Fail, fmt.Sprintf("%s leaves %d bytes for the name of a socket, machines need %d", f.RuntimeDir,
			max(room, 0), machineSocket), shorter+" for the runtime directory")
	}
	return one(name, OK, f.SocketPath+" is short enough", "")
}
