#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Finds what gdrdrv is built against, of the NVIDIA driver that a kernel has on this machine.
set -euo pipefail

usage() {
	cat <<-TEXT
	usage: $0 sources RELEASE
	       $0 symvers RELEASE FILE
	       $0 installed RELEASE

	sources    the folder of the driver's sources that DKMS or a package left in /usr/src
	symvers    FILE, after writing to it the symbols that nvidia.ko exports, as in a
	           Module.symvers; or the one that DKMS kept
	installed  which driver is: 550.54.14-open or 550.54.14-proprietary

	RELEASE is the kernel's, as of uname -r. Prints nothing where there is nothing.
	FIND_NVIDIA_ROOT is a folder to look in instead of / (for tests).
	TEXT
}

# nvidia.ko as this kernel would load it, which Debian gives another name. Both flavours may be
# installed: then it is the one that is loaded, if this is the kernel that runs.
module() {
	local name path first='' loaded=
	[ "$release" != "$(uname -r)" ] ||
		loaded=$(cat "$root/sys/module/nvidia/srcversion" 2> /dev/null) || true
	for name in nvidia nvidia-current nvidia-current-open nvidia-open; do
		path=$(modinfo -b "$root/" -k "$release" -n "$name" 2> /dev/null) || continue
		first=${first:-$path}
		if [ -n "$loaded" ] && [ "$(modinfo -F srcversion "$path")" = "$loaded" ]; then
			echo "$path"
			return
		fi
	done
	[ -z "$first" ] || echo "$first"
}

# What is loaded counts, if this is the kernel that runs.
version() {
	local loaded=$root/sys/module/nvidia/version module
	if [ "$release" = "$(uname -r)" ] && [ -r "$loaded" ]; then
		cat "$loaded"
		return
	fi
	module=$(module)
	[ -z "$module" ] || modinfo -F version "$module"
}

first_existing() {
	local path
	for path; do
		[ ! -e "$path" ] || { echo "$path"; return; }
	done
}

# NVIDIA's open modules have the headers in kernel-open, its installer in kernel.
sources() {
	local version header
	version=$(version)
	[ -n "$version" ] || return 0
	header=$(first_existing \
		"$root"/usr/src/nvidia*-"$version"/{,kernel-open/,kernel/}nvidia/nv-p2p.h \
		"$root"/var/lib/dkms/nvidia*/"$version"/source/{,kernel-open/,kernel/}nvidia/nv-p2p.h)
	[ -z "$header" ] || echo "${header%/nvidia/nv-p2p.h}"
}

# Checksum, symbol, module, kind of export, name space. Without --show-exports (before kmod 27), or
# where the driver was replaced since it was loaded, there is what DKMS keeps since its version 3.1.
symvers() {
	local file=$1 module version
	module=$(module)
	version=$(version)
	if [ -n "$module" ] && [ "$(modinfo -F version "$module")" = "$version" ]; then
		modprobe --show-exports "$module" 2> /dev/null |
			awk -v OFS='\t' '/nvidia_p2p_/ { print $1, $2, "nvidia", "EXPORT_SYMBOL", "" }' \
			> "$file" || true
		[ ! -s "$file" ] || { echo "$file"; return; }
	fi
	first_existing "$root"/var/lib/dkms/nvidia*/"$version/$release"/*/module/Module.symvers
}

installed() {
	local module flavour=proprietary
	module=$(module)
	[ -n "$module" ] || return 0
	[[ $(modinfo -F license "$module") != *GPL* ]] || flavour=open
	echo "$(modinfo -F version "$module")-$flavour"
}

root=${FIND_NVIDIA_ROOT:-}
PATH=$PATH:/usr/sbin:/sbin
release=${2:-}
case "$#${1:-}" in
2sources) sources ;;
3symvers) symvers "$3" ;;
2installed) installed ;;
1-h | 1--help) usage ;;
*)
	usage >&2
	exit 2
	;;
esac
