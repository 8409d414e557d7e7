#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Fails if a module needs GPL-only symbols: beside the proprietary nvidia.ko it would not load. And
# if it needs what neither the kernel nor nvidia.ko has: it would load nowhere.
set -euo pipefail

if [ $# -ne 2 ]; then
	echo "usage: $0 MODULE.ko KERNEL/Module.symvers" >&2
	exit 2
fi

needed=$(nm --undefined-only --format=posix "$1" | awk '{ print $1 }' | sort -u)
exported=$(awk '{ print $2 }' "$2" | sort -u)
gpl=$(awk '$4 ~ /^EXPORT_SYMBOL_GPL/ { print $2 }' "$2" | sort -u)
if [ -z "$needed" ] || [ -z "$gpl" ]; then
	echo "$0: no symbols in $1, or no GPL-only ones in $2" >&2
	exit 2
fi

gpl_only=$(comm -12 <(echo "$needed") <(echo "$gpl"))
missing=$(comm -23 <(echo "$needed") <(echo "$exported") | sed '/^nvidia_p2p_/d')
if [ -n "$gpl_only" ]; then
	echo "$1 needs symbols that only GPL modules may use:" >&2
	echo "$gpl_only" >&2
	exit 1
fi
if [ -n "$missing" ]; then
	echo "$1 needs symbols that nobody exports:" >&2
	echo "$missing" >&2
	exit 1
fi
