#!/usr/bin/env bash
# Builds the gdrdrv kernel module if need be, and loads it.
set -euo pipefail

usage() {
	cat <<-TEXT
	usage: sudo ./insmod.sh [--load] [PARAMETER=VALUE...]
	       sudo ./insmod.sh --unload
	       ./insmod.sh --status

	--load (the default) loads gdrdrv beside the NVIDIA driver, with the module's parameters:
	sudo ./insmod.sh mode=0660 max_pinned_mib=1024. It builds driver/gdrdrv.ko before, if that is
	missing, older than its sources, or for another kernel or NVIDIA driver than the ones running.
	Where gdrdrv is loaded already, nothing happens.
	--status changes nothing and needs no root: what is loaded, what is there, what --load would do.

	No other backend of gdrpy needs the module: nvrm maps GPU memory on a stock NVIDIA driver.

	Environment:
	  KDIR            the running kernel's build tree (/lib/modules/\$(uname -r)/build)
	  NVIDIA_SRC      sources of the NVIDIA driver, and the Module.symvers of its build:
	  NVIDIA_SYMVERS  see driver/README.md
	  GDRDRV_MODULE   a module to load as it is, instead of building one

	Exit status:
	  0  done, or so already
	  1  the kernel refused, for none of the reasons below
	  2  wrong usage, or a parameter that the module has not
	  3  not root, or a root that may not load modules
	  4  it cannot be built: no headers, make or compiler, or errors in the build
	  5  no NVIDIA driver is loaded, or not the one that the module was built for
	  6  the kernel takes modules with a trusted signature only
	  7  another gdrdrv is loaded, or this one otherwise: older, or with other parameters
	  8  the module is in use

	docs/kernel-module.md has more.
	TEXT
}

readonly FAILED=1 USAGE=2 NOT_ROOT=3 NO_BUILD=4 NO_DRIVER=5 UNSIGNED=6 ANOTHER=7 IN_USE=8

# The tests' own machine lies elsewhere.
root=${GDRPY_SYSROOT:-}
[[ ${KDIR:-/} = /* ]] || KDIR=$PWD/$KDIR
[[ ${NVIDIA_SRC:-/} = /* ]] || NVIDIA_SRC=$PWD/$NVIDIA_SRC
[[ ${NVIDIA_SYMVERS:-/} = /* ]] || NVIDIA_SYMVERS=$PWD/$NVIDIA_SYMVERS
[[ ${GDRDRV_MODULE:-/} = /* ]] || GDRDRV_MODULE=$PWD/$GDRDRV_MODULE
cd "$(dirname "$0")"
PATH=$PATH:/usr/sbin:/sbin
module=${GDRDRV_MODULE:-driver/gdrdrv.ko}
node=$root/dev/gdrdrv
release=$(uname -r)
headers=${KDIR:-$root/lib/modules/$release/build}

# An exit status, and why.
fail() {
	echo "insmod.sh: ${*:2}" >&2
	exit "$1"
}

# The first line of a file of /proc or /sys, or nothing.
said() {
	local line=
	{ read -r line < "$root$1"; } 2> /dev/null || true
	echo "$line"
}

# How to get a package, by its Debian name and its Fedora name.
how_to_get() {
	if command -v dnf > /dev/null; then
		echo "dnf install $2"
	else
		echo "apt install $1"
	fi
}

need_root() {
	[ "$(id -u)" = 0 ] || fail $NOT_ROOT "only root may load and unload modules: sudo ./insmod.sh"
}

## What is loaded

loaded() {
	[ -e "$root/sys/module/gdrdrv" ]
}

# NVIDIA's lists no pins.
ours() {
	[ -e "$root/proc/driver/gdrdrv/pins" ]
}

whose() {
	local version
	version=$(said /sys/module/gdrdrv/version)
	if ours; then
		echo "gdrpy's gdrdrv ${version:-of no version}"
	else
		echo "another gdrdrv, NVIDIA's ${version:-of no version},"
	fi
}

parameter() {
	local value
	value=$(said "/sys/module/gdrdrv/parameters/$1")
	[ "$1" != mode ] || value=$(printf '%04o' "$value")
	echo "$value"
}

# Whether a parameter has this value, which may be written in other ways.
parameter_is() {
	local value
	value=$(parameter "$1")
	case $value in
	Y) [[ $2 =~ ^(1|[yY]|on)$ ]] ;;
	N) [[ $2 =~ ^(0|[nN]|off)$ ]] ;;
	*) [[ $2 =~ ^(0[0-7]*|[1-9][0-9]*|0x[0-9a-fA-F]+)$ ]] && [ $((value)) = $(($2)) ] ;;
	esac
}

# What speaks against taking the loaded module for the one asked for.
loaded_otherwise() {
	local built pair
	if ! ours; then
		echo "$(whose) is loaded: sudo ./insmod.sh --unload, then again"
		return
	fi
	built=$(about srcversion)
	if [ -n "$built" ] && [ "$built" != "$(said /sys/module/gdrdrv/srcversion)" ]; then
		echo "gdrdrv is loaded, but from other sources than $module:" \
			"sudo ./insmod.sh --unload, then again"
		return
	fi
	for pair in "${parameters[@]}"; do
		parameter_is "${pair%%=*}" "${pair#*=}" && continue
		echo "gdrdrv is loaded with ${pair%%=*}=$(parameter "${pair%%=*}"):" \
			"sudo ./insmod.sh --unload, then again"
		return
	done
}

## The NVIDIA driver

# Sets provider to the loaded module that exports the peer-to-peer interface, flavour to its
# licence's, and running to what driver/find-nvidia.sh says of an installed one; nothing if the
# module tells no version.
find_driver() {
	local version
	provider=$(grep ' nvidia_p2p_get_pages_persistent\b' "$root/proc/kallsyms" 2> /dev/null) || true
	provider=${provider##*[} provider=${provider%]}
	flavour=open
	[[ $(said "/sys/module/$provider/taint") != *P* ]] || flavour=proprietary
	version=$(said "/sys/module/$provider/version")
	running=${version:+$version-$flavour}
}

need_driver() {
	[ -z "$provider" ] || return 0
	[ ! -e "$root/sys/module/nvidia" ] || fail $NO_DRIVER \
		"NVIDIA driver $(said /sys/module/nvidia/version) has no persistent peer-to-peer pins:" \
		"install a newer one"
	fail $NO_DRIVER "no NVIDIA driver is loaded: sudo modprobe nvidia"
}

## The module

about() {
	[ ! -e "$module" ] || modinfo -F "$1" "$module" 2> /dev/null || true
}

# Why the module is not to be loaded as it is; nothing if it is.
unfit() {
	local kernel nvidia newer
	if [ ! -e "$module" ]; then
		echo "is missing"
		return
	fi
	kernel=$(about vermagic)
	nvidia=$(about nvidia)
	if [ "${kernel%% *}" != "$release" ]; then
		echo "is for Linux ${kernel%% *}, not $release"
	elif [ "$nvidia" != "$running" ] && { [ -n "$nvidia" ] || [ -z "${GDRDRV_MODULE:-}" ]; }; then
		echo "is for NVIDIA driver ${nvidia:-unknown}, not ${running:-unknown}"
	elif [ -z "${GDRDRV_MODULE:-}" ]; then
		newer=$(find driver \( -name '*.[ch]' -o -name Kbuild -o -name Makefile \) \
			! -name '*.mod.c' -newer "$module" -print -quit)
		[ -z "$newer" ] || echo "is older than $newer"
	fi
}

need_tools() {
	local tree compiler=gcc installed
	[ -e "$headers/Makefile" ] || fail $NO_BUILD "no headers of Linux $release in $headers:" \
		"$(how_to_get "linux-headers-$release" "kernel-devel-$release")"
	tree=$(sed -n 's/^#define UTS_RELEASE "\(.*\)"/\1/p' \
		"$headers/include/generated/utsrelease.h" 2> /dev/null) || true
	[ "$tree" = "$release" ] || fail $NO_BUILD \
		"$headers is of Linux ${tree:-unknown}, but $release runs: set KDIR to that one's"
	! has_config CC_IS_CLANG || compiler=clang
	for command in make "$compiler"; do
		command -v "$command" > /dev/null ||
			fail $NO_BUILD "no $command: $(how_to_get "$command" "$command")"
	done
	installed=$(FIND_NVIDIA_ROOT=$root driver/find-nvidia.sh installed "$release")
	[ -z "$installed" ] || [ -z "$running" ] || [ "$installed" = "$running" ] ||
		[ -n "${NVIDIA_SYMVERS:-}" ] || fail $NO_DRIVER \
		"NVIDIA driver $running is loaded, but $installed is installed: reboot, or load that"
}

has_config() {
	grep -q "^CONFIG_$1=y" "$headers/include/config/auto.conf" 2> /dev/null
}

build() {
	local tracepoints=
	[ "$flavour" != open ] || ! has_config EVENT_TRACING || tracepoints=1
	# Kbuild does not see that the headers it built from were another kernel's.
	make -s -C driver KDIR="$headers" clean > /dev/null || fail $NO_BUILD "make clean failed"
	make -s -C driver KDIR="$headers" NVIDIA_DRIVER="$running" TRACEPOINTS="$tracepoints" ||
		fail $NO_BUILD "driver/ does not build: see above"
}

# What makes the kernel refuse unsigned modules; nothing if it takes them.
enforcement() {
	local why=
	if [[ $(said /sys/kernel/security/lockdown) =~ \[(integrity|confidentiality)\] ]]; then
		why="lockdown: ${BASH_REMATCH[1]}"
	elif [ "$(said /sys/module/module/parameters/sig_enforce)" = Y ]; then
		why="module.sig_enforce"
	fi
	if [ -n "$why" ] && mokutil --sb-state 2> /dev/null | grep -q enabled; then
		why="Secure Boot, $why"
	fi
	echo "$why"
}

need_signature() {
	local why
	why=$(enforcement)
	[ -z "$why" ] || [ -n "$(about sig_id)" ] || fail $UNSIGNED \
		"the kernel takes signed modules only ($why): sign $module: docs/kernel-module.md"
}

# Those of the module that is loaded, or else of the one to load.
known_parameters() {
	if loaded; then
		(cd "$root/sys/module/gdrdrv/parameters" && echo *)
	else
		modinfo -F parm "$module" | cut -d : -f 1 | sort | paste -sd ' '
	fi
}

need_known_parameters() {
	local pair known
	known=$(known_parameters)
	for pair in "${parameters[@]}"; do
		[[ " $known " == *" ${pair%%=*} "* ]] ||
			fail $USAGE "gdrdrv has no parameter '${pair%%=*}': there are $known"
	done
}

# Says why insmod failed, from its message and what the kernel said last.
explain() {
	local log
	log=$(dmesg 2> /dev/null | grep gdrdrv | tail -n 1 || true)
	case $1 in
	*"Key was rejected"* | *"Required key not available"*)
		fail $UNSIGNED "the kernel trusts no key that signed $module: enrol one:" \
			"docs/kernel-module.md" ;;
	*"Operation not permitted"*)
		[ -z "$(enforcement)" ] ||
			fail $UNSIGNED "the kernel takes signed modules only: sign $module:" \
				"docs/kernel-module.md"
		fail $NOT_ROOT "this root may not load modules: run insmod.sh on the host, not in a" \
			"container" ;;
	esac
	case $log in
	*"no symbol version for nvidia_p2p"*)
		fail $NO_DRIVER "this kernel checks symbol versions: rm $module, then again with" \
			"NVIDIA_SYMVERS=the Module.symvers of the NVIDIA driver's build" ;;
	*"disagrees about version of symbol nvidia_p2p"*)
		fail $NO_DRIVER "$module was built with the Module.symvers of another NVIDIA driver:" \
			"rm $module, then again with NVIDIA_SYMVERS=that of the loaded one" ;;
	*"GPL-incompatible module"* | *"Unknown symbol"*)
		fail $NO_DRIVER "$module is not for this NVIDIA driver (${log#*gdrdrv: }):" \
			"rm $module, then again" ;;
	esac
	fail $FAILED "${1##*insmod: }; the kernel says: ${log:-nothing, see dmesg}"
}

## The node

# Made by devtmpfs, or left over from a device that had another number.
node_is_right() {
	local found
	[ -c "$node" ] || return 1
	found=$(stat -L -c '0x%t 0x%T' "$node")
	# shellcheck disable=SC2086 # two numbers
	[ "$(printf '%d:%d' $found)" = "$(said /sys/class/misc/gdrdrv/dev)" ]
}

make_node() {
	local number
	! node_is_right || return 0
	number=$(said /sys/class/misc/gdrdrv/dev)
	[ -n "$number" ] || fail $FAILED "the module is loaded, but has no device: see dmesg"
	rm -f "$node"
	mknod -m "$(parameter mode)" "$node" c "${number%:*}" "${number#*:}"
	echo "made /dev/gdrdrv, which no devtmpfs had made"
}

# Who has the node or a share descriptor open, or mapped: "pid (name)" each.
holders() {
	local file pid found=()
	while read -r file; do
		pid=${file#"$root/proc/"} pid=${pid%%/*}
		found[pid]="$pid ($(said "/proc/$pid/comm"))"
	done < <(
		find "$root"/proc/[0-9]*/fd -lname '/dev/gdrdrv*' -o -lname '/gdrdrv (deleted)' 2> /dev/null
		grep -ls ' /gdrdrv (deleted)$' "$root"/proc/[0-9]*/maps
	)
	printf '%s\n' "${found[@]}" | paste -sd , | sed 's/,/, /g'
}

## What is asked for

load() {
	local otherwise unfit message
	need_root
	if loaded; then
		! ours || need_known_parameters
		otherwise=$(loaded_otherwise)
		[ -z "$otherwise" ] || fail $ANOTHER "$otherwise"
		make_node
		echo "gdrdrv is loaded already"
		return
	fi
	find_driver
	need_driver
	unfit=$(unfit)
	if [ -n "$unfit" ]; then
		[ -z "${GDRDRV_MODULE:-}" ] || fail $NO_DRIVER "$module $unfit"
		need_tools
		echo "building: $module $unfit"
		build
	fi
	need_known_parameters
	need_signature
	message=$(insmod "$module" "${parameters[@]}" 2>&1) || explain "$message"
	make_node
	echo "gdrdrv is loaded: $(ls -l "$node")"
}

unload() {
	local message users
	need_root
	if ! loaded; then
		echo "gdrdrv is not loaded"
		return
	fi
	if ! message=$(rmmod gdrdrv 2>&1); then
		users=$(holders)
		[ -z "$users" ] || fail $IN_USE "gdrdrv is in use by $users: end them first"
		message=${message##*rmmod: }
		[[ $message = *" is in use" ]] || fail $IN_USE "$message"
		fail $IN_USE "$message, by no process:" \
			"gdrdrv stays loaded until the next reboot after a user has unpinned a revocable pin"
	fi
	# Its number may be another device's next.
	rm -f "$node"
	echo "gdrdrv is unloaded"
}

# What --load would meet or do.
next_step() {
	local obstacle unfit would="sudo ./insmod.sh would"
	if loaded; then
		obstacle=$(loaded_otherwise)
		if [ -n "$obstacle" ]; then
			echo "$obstacle"
		elif ! node_is_right; then
			echo "$would make the node"
		else
			echo "none: gdrdrv is ready"
		fi
		return
	fi
	unfit=$(unfit)
	obstacle=$( (
		need_driver
		[ -z "${GDRDRV_MODULE:-}" ] || [ -z "$unfit" ] || fail $NO_DRIVER "$module $unfit"
		[ -z "$unfit" ] || need_tools
		[ -n "$unfit" ] || need_signature
	) 2>&1) || true
	if [ -n "$obstacle" ]; then
		echo "${obstacle#insmod.sh: }"
	elif [ -z "$unfit" ]; then
		echo "$would load $module; nothing of the NVIDIA driver is changed"
	elif [ -n "$(enforcement)" ]; then
		echo "$would build $module; then it has to be signed: docs/kernel-module.md"
	else
		echo "$would build $module and load it; nothing of the NVIDIA driver is changed"
	fi
}

status() {
	local unfit why name
	find_driver
	unfit=$(unfit)
	why=$(enforcement)
	if loaded; then
		echo "module:     $(whose) is loaded"
	else
		echo "module:     not loaded"
	fi
	if loaded && ours; then
		printf 'parameters:'
		for name in "$root"/sys/module/gdrdrv/parameters/*; do
			printf ' %s=%s' "${name##*/}" "$(parameter "${name##*/}")"
		done
		echo
	fi
	if [ -c "$node" ]; then
		echo "node:       /dev/gdrdrv, $(stat -L -c '%a %U:%G' "$node")"
	else
		echo "node:       /dev/gdrdrv is missing"
	fi
	if [ -n "$provider" ]; then
		echo "NVIDIA:     $provider ${running:-of no version}"
	else
		echo "NVIDIA:     no driver with a peer-to-peer interface is loaded"
	fi
	if [ -e "$headers/Makefile" ]; then
		echo "kernel:     Linux $release, headers in $headers"
	else
		echo "kernel:     Linux $release, no headers"
	fi
	echo "built:      $module ${unfit:-is for this kernel and driver}"
	echo "signatures: $([ -n "$why" ] && echo "enforced ($why)" || echo "not enforced")"
	echo "next:       $(next_step)"
}

action=load
parameters=()
for argument; do
	case $argument in
	--load) action=load ;;
	--unload) action=unload ;;
	--status) action=status ;;
	-h | --help) action=usage ;;
	[a-z]*=*) parameters+=("$argument") ;;
	*)
		usage >&2
		fail $USAGE "unknown argument '$argument'"
		;;
	esac
done
[ $action = load ] || [ ${#parameters[@]} = 0 ] || fail $USAGE "parameters are for --load"
$action
