#!/usr/bin/env bash
# Builds the gdrdrv kernel module if need be and loads it.
set -euo pipefail
cd "$(dirname "$0")"

usage() {
	cat <<-TEXT
	usage: sudo ./insmod.sh [--load | --unload | --status | --help]

	--load (the default) builds driver/gdrdrv.ko for the running kernel and loads it beside the
	NVIDIA driver; where it is loaded already, nothing happens. No other backend of gdrpy needs it:
	on a stock NVIDIA driver nvrm maps GPU memory without a module.

	NVIDIA_SYMVERS, NVIDIA_SRC: see driver/README.md, for kernels that check symbol versions.
	TEXT
}

fail() {
	echo "insmod.sh: $1" >&2
	exit 1
}

loaded() {
	[ -e /sys/module/gdrdrv ]
}

# Ours lists its pins in /proc; NVIDIA's has nothing there.
whose() {
	if [ -e /proc/driver/gdrdrv/pins ]; then
		echo "gdrpy's gdrdrv"
	else
		echo "another gdrdrv, version $(cat /sys/module/gdrdrv/version 2> /dev/null || echo unknown)"
	fi
}

nvidia_loaded() {
	grep -q ' nvidia_p2p_get_pages_persistent\b' /proc/kallsyms 2> /dev/null
}

status() {
	if loaded; then
		echo "module: $(whose) is loaded"
	else
		echo "module: not loaded"
	fi
	[ -c /dev/gdrdrv ] && echo "node: $(ls -l /dev/gdrdrv)" || echo "node: /dev/gdrdrv is missing"
	if [ -r /proc/driver/nvidia/version ]; then
		echo "NVIDIA driver: $(head -n 1 /proc/driver/nvidia/version)"
	else
		echo "NVIDIA driver: not loaded"
	fi
}

need_root() {
	[ "$(id -u)" = 0 ] || fail "loading and unloading need root: sudo ./insmod.sh"
}

# devtmpfs makes the node; a /dev without it gets it here.
make_node() {
	[ -c /dev/gdrdrv ] && return
	minor=$(awk '$2 == "gdrdrv" { print $1 }' /proc/misc)
	[ -n "$minor" ] || fail "the module is loaded, but has no device: see dmesg"
	mknod -m 0666 /dev/gdrdrv c 10 "$minor"
}

load() {
	need_root
	if loaded; then
		[ -e /proc/driver/gdrdrv/pins ] || fail "$(whose) is loaded: unload it by rmmod gdrdrv"
		make_node
		echo "gdrdrv is loaded already"
		return
	fi
	nvidia_loaded || fail "no NVIDIA driver with peer-to-peer support is loaded: modprobe nvidia"
	kernel=${KDIR:-/lib/modules/$(uname -r)/build}
	[ -e "$kernel/Makefile" ] ||
		fail "no headers of kernel $(uname -r): install linux-headers-$(uname -r)"
	make -s -C driver KDIR="$kernel" || fail "driver/ does not build: see above"
	if ! message=$(insmod driver/gdrdrv.ko 2>&1); then
		case $message in
		*"Key was rejected"* | *"Operation not permitted"*)
			fail "the kernel takes signed modules only (Secure Boot): sign driver/gdrdrv.ko" ;;
		*"Invalid module format"* | *"Invalid parameters"* | *"Unknown symbol"*)
			fail "$message: built for another kernel or NVIDIA driver; see dmesg, and NVIDIA_SYMVERS" ;;
		*) fail "$message; see dmesg" ;;
		esac
	fi
	make_node
	echo "gdrdrv is loaded: $(ls -l /dev/gdrdrv)"
}

unload() {
	need_root
	loaded || { echo "gdrdrv is not loaded"; return; }
	rmmod gdrdrv || fail "the module is in use: end the programs that hold /dev/gdrdrv open"
	echo "gdrdrv is unloaded"
}

[ $# -le 1 ] || { usage >&2; exit 2; }
case "${1:---load}" in
--load) load ;;
--unload) unload ;;
--status) status ;;
-h | --help) usage ;;
*)
	echo "insmod.sh: unknown argument '$1'" >&2
	usage >&2
	exit 2
	;;
esac
