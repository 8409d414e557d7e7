#!/usr/bin/env bash
# Has DKMS build gdrdrv anew for each kernel whose NVIDIA driver is another than it was built for:
# DKMS itself does so from its version 3.2 on, and only for a driver that it builds too.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
version=${here##*/gdrdrv-}

# What is installed stays where the build fails.
rebuild() {
	dkms build --force "gdrdrv/$version" -k "$1"
	dkms install --force "gdrdrv/$version" -k "$1"
}

dkms status "gdrdrv/$version" | sed -n 's/^[^,]*, \([^,]*\), .*: installed.*/\1/p' |
	while read -r kernel; do
		driver=$("$here/find-nvidia.sh" installed "$kernel")
		[ -n "$driver" ] || continue
		[ "$driver" != "$(modinfo -k "$kernel" -F nvidia gdrdrv)" ] || continue
		echo "gdrdrv: building for NVIDIA driver $driver on Linux $kernel"
		# The packages that are being installed are not to fail for it.
		rebuild "$kernel" < /dev/null || echo "gdrdrv: not built for Linux $kernel: see above" >&2
	done
