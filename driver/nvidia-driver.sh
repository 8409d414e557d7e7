#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Prints which NVIDIA driver is installed for a kernel, as 550.54.14-open or 550.54.14-proprietary;
# nothing if there is none.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

kernel=${1:-$(uname -r)}
# Debian's packages give the module's file another name.
for module in nvidia nvidia-current nvidia-current-open; do
	version=$(modinfo -k "$kernel" -F version "$module" 2> /dev/null) || continue
	case $(modinfo -k "$kernel" -F license "$module") in
	*GPL*) echo "$version-open" ;;
	*) echo "$version-proprietary" ;;
	esac
	exit
done
