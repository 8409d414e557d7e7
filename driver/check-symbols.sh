#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Fails if a module needs GPL-only symbols: beside the proprietary nvidia.ko it would not load.
set -euo pipefail

if [ $# -ne 2 ]; then
	echo "usage: $0 MODULE.ko KERNEL/Module.symvers" >&2
	exit 2
fi

needed=$(nm --undefined-only --format=posix "$1" | awk '{ print $1 }' | sort -u)
gpl=$(awk '$4 ~ /^EXPORT_SYMBOL_GPL/ { print $2 }' "$2" | sort -u)
gpl_only=$(comm -12 <(echo "$needed") <(echo "$gpl"))

if [ -n "$gpl_only" ]; then
	echo "$1 needs symbols that only GPL modules may use:" >&2
	echo "$gpl_only" >&2
	exit 1
fi
