#!/bin/bash
# Loads NVIDIA's gdrdrv, which makes no node, as gdrcopy's own insmod.sh does; or unloads it. Called
# as the checkout's insmod.sh is.
set -e
if [ "$1" = --unload ]; then
	rmmod gdrdrv
	rm /dev/gdrdrv
	exit
fi
insmod "$GDRDRV_MODULE" "$@"
mknod -m 666 /dev/gdrdrv c "$(awk '$2 == "gdrdrv" { print $1 }' /proc/devices)" 0
