#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 IronCore contributors
# SPDX-License-Identifier: Apache-2.0
#
# Installs the Debian packages that "make run", "make test" or "make test-ceph" needs and that are missing, and says why
# each is needed. Without root it says which command to run instead. Usage: hack/packages.sh run|test|ceph
set -euo pipefail

arch=$(dpkg --print-architecture 2>/dev/null || true)
if [ -z "$arch" ]; then
  echo "This is not a Debian system; packages are not checked. Needed: QEMU, busybox (static), mkfs.ext4, xz, zstd." >&2
  exit 0
fi
case "$arch" in
  arm64) qemu=qemu-system-arm ;;
  *) qemu=qemu-system-x86 ;;
esac

# package | a file or command that shows it is there | why
run_packages="$qemu|qemu-system-*|runs the guests
busybox-static|/bin/busybox|is the user space of the guest
e2fsprogs|mkfs.ext4|makes the guest's root disk
xz-utils|xz|unpacks kernel modules
zstd|zstd|unpacks kernels and modules
ca-certificates|/etc/ssl/certs/ca-certificates.crt|lets registries be verified"
ceph_packages="ceph-mon|ceph-mon|is the monitor of the tests' Ceph cluster
ceph-osd|ceph-osd|keeps that cluster's data
ceph-common|rbd|makes images in that cluster
cryptsetup-bin|cryptsetup|encrypts such images
qemu-utils|qemu-img|opens images, and makes overlays
qemu-system-common|qemu-storage-daemon|serves images to hypervisors
qemu-block-extra|/usr/lib/*/qemu/block-rbd.so|lets QEMU open images in Ceph"
test_packages="$run_packages
gcc|gcc|builds the tests with the race detector
libc6-dev|/usr/include/stdlib.h|builds the tests with the race detector
iproute2|ip|shows network devices to the tests
nftables|nft|sets the rules of managed networks
systemd|systemd-analyze|checks the daemon's unit, and runs it in an emulated machine
dbus|/usr/share/dbus-1/system.conf|is the bus in that machine
dbus-daemon|dbus-daemon|is the bus on which the tests stand in for systemd
ovmf|/usr/share/OVMF/OVMF_CODE*.fd|is the firmware that disks boot by
strace|strace|counts what a hypervisor makes durable
$ceph_packages"

case "${1:-}" in
  run) wanted=$run_packages ;;
  test) wanted=$test_packages ;;
  ceph) wanted="$run_packages
$ceph_packages" ;;
  *) echo "usage: hack/packages.sh run|test|ceph" >&2; exit 2 ;;
esac

present() {
  case "$1" in
    /*) compgen -G "$1" >/dev/null ;;
    *'*') compgen -c "${1%\*}" >/dev/null ;;
    *) command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] ;;
  esac
}

missing=()
while IFS='|' read -r package sign why; do
  if ! present "$sign"; then
    [ "${#missing[@]}" -gt 0 ] || echo "Missing Debian packages:"
    echo "  $package: $why"
    missing+=("$package")
  fi
done <<<"$wanted"

lists=$(compgen -G '/var/lib/apt/lists/*_Packages*' | head -n 1 || true)
if [ "${#missing[@]}" -eq 0 ] && [ -n "$lists" ]; then
  exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
  if [ "${#missing[@]}" -gt 0 ]; then
    echo "You are not root. Run this, then try again:" >&2
    echo "  sudo apt-get update && sudo apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  exit 0
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() {
  if ! DEBIAN_FRONTEND=noninteractive "$@" >"$log" 2>&1; then
    cat "$log" >&2
    echo "This failed: $*" >&2
    exit 1
  fi
}
echo "Reading Debian's package lists ..."
quietly apt-get update
if [ "${#missing[@]}" -gt 0 ]; then
  echo "Installing ${missing[*]} ..."
  quietly apt-get install -y --no-install-recommends "${missing[@]}"
fi
