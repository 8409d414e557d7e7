#!/usr/bin/env bash
# Lays the packages' files out below a folder; run in the tree that packaging/build stages.
set -euo pipefail

cd "$(dirname "$0")/.."
source=$1/usr/src/gdrdrv-@VERSION@

install -d "$source"
cp -r ./*.c ./*.h uapi Kbuild Makefile ./*.sh "$source"
install -m 755 packaging/rebuild.sh "$source"
install -m 644 packaging/dkms.conf "$source"
install -D -m 644 packaging/modules-load.conf "$1/usr/lib/modules-load.d/gdrdrv.conf"
install -D -m 644 -t "$1/usr/share/doc/gdrdrv-dkms/examples" packaging/examples/*
