#!/usr/bin/env bash
# Tells whether a gdrdrv kernel module is loaded here, and what gdrpy uses instead.
set -euo pipefail

usage() {
	cat <<-TEXT
	usage: ./insmod.sh [--status]

	This release of gdrpy has no kernel module of its own: on a stock NVIDIA driver the nvrm
	backend maps GPU memory without one. --status (the default) tells what this machine has.
	TEXT
}

status() {
	if [ -e /sys/module/gdrdrv ]; then
		version=$(cat /sys/module/gdrdrv/version 2>/dev/null || echo unknown)
		echo "gdrdrv: loaded, version $version; this release of gdrpy does not use it"
	else
		echo "gdrdrv: not loaded, and not needed by this release of gdrpy"
	fi
	if [ -r /proc/driver/nvidia/version ]; then
		echo "NVIDIA driver: $(head -n 1 /proc/driver/nvidia/version)"
	else
		echo "NVIDIA driver: not loaded; gdrpy runs on its simulated GPU"
	fi
	echo "For the backends that work here: gdrpy info"
}

if [ $# -gt 1 ]; then
	echo "insmod.sh: one argument at most, and there are $#" >&2
	usage >&2
	exit 2
fi
case "${1:---status}" in
--status) status ;;
-h | --help) usage ;;
*)
	echo "insmod.sh: unknown argument '$1'" >&2
	usage >&2
	exit 2
	;;
esac
