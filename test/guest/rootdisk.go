// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// rootUUID is fixed, so that the same inputs give the same image; a host sees the label, not this.
const rootUUID = "6368702d-726f-4f74-8000-000000000001"

// makeRootDisk writes a sparse raw ext4 image without partitions.
func makeRootDisk(ctx context.Context, path string, size int64) error {
	mkfs, err := findTool("mkfs.ext4", "e2fsprogs")
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, mkfs, "-q", "-F", "-L", RootLabel, "-U", rootUUID, "-m", "0", "-b", "4096",
		"-E", "hash_seed="+rootUUID+",lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0", path)
	// e2fsprogs takes the file system's times from here.
	const then = "1577836800"
	cmd.Env = append(os.Environ(), "E2FSPROGS_FAKE_TIME="+then, "SOURCE_DATE_EPOCH="+then, "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make root disk: mkfs.ext4: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return syncFile(path)
}

func findTool(name, debianPackage string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	// A normal user's PATH often lacks these.
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(dir + "/" + name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not on this host; run: apt-get install %s", name, debianPackage)
}
