# What setup unpacks, besides kernels, of Debian's packages; each in a folder of the cache.

# Fills the folder of that name by the function of that name, unless it is complete.
fetch_once() {
	local folder=$kernels/$1
	[ ! -e "$folder/ready" ] || return 0
	rm -rf "$folder"
	mkdir -p "$folder/root"
	"fetch_${1//-/_}" "$folder"
	rm -rf "$folder"/*.deb "$folder/apt"
	touch "$folder/ready"
}

# Kernels from trixie on are built by programs that Debian 12 has not; with-trixie runs them.
fetch_trixie_programs() {
	local package
	echo "tests/vm/setup: fetching the compilers of Debian 13 (its packages, 500 MB unpacked)"
	use_suites "$1" amd64 trixie trixie-security
	apt-get -qq "${apt_options[@]}" -y --no-install-recommends --download-only install \
		'?essential' gcc gcc-aarch64-linux-gnu make libelf1t64 libssl3t64 perl > /dev/null
	for package in "$1"/apt/cache/archives/*.deb; do
		dpkg -x "$package" "$1/root"
	done
	# Which installing the package would have made.
	ln -s mawk "$1/root/usr/bin/awk"
}

# What a guest with another processor has in /usr/bin: these are linked with nothing.
fetch_arm64_programs() {
	use_suites "$1" arm64 bookworm bookworm-security
	download "$1" busybox-static:arm64 bash-static:arm64
	local package
	for package in "$1"/*.deb; do
		dpkg -x "$package" "$1/root"
	done
}

fetch_nvidia_535_open() {
	fetch_nvidia "$1" bookworm/contrib nvidia-open-kernel-dkms bookworm-security/contrib
}

fetch_nvidia_535_proprietary() {
	fetch_nvidia "$1" bookworm/non-free nvidia-kernel-dkms bookworm-security/non-free
}

fetch_nvidia_550_open() {
	fetch_nvidia "$1" trixie/contrib nvidia-open-kernel-dkms
}

fetch_nvidia_550_proprietary() {
	fetch_nvidia "$1" trixie/non-free nvidia-kernel-dkms
}

fetch_nvidia() {
	echo "tests/vm/setup: fetching sources of NVIDIA's driver (Debian package $3)"
	use_suites "$1" amd64 "$2" "${@:4}"
	mkdir -p "$1/package"
	(cd "$1/package" && apt-get -qq "${apt_options[@]}" download "$3")
	dpkg -x "$1"/package/*.deb "$1/root"
}

# For NVIDIA's own gdrdrv, which Debian has not.
fetch_gdrcopy() {
	local from=${GDRPY_GDRCOPY:-https://github.com/NVIDIA/gdrcopy}
	echo "tests/vm/setup: fetching sources of NVIDIA's gdrdrv (gdrcopy 2.6, of $from)"
	git -c advice.detachedHead=false clone -q --depth 1 --branch v2.6 "$from" "$1/root" || {
		echo "tests/vm/setup: cannot fetch $from: set GDRPY_GDRCOPY to a clone of it" >&2
		exit 77
	}
}

# No package smaller than a kernel's sources has checkpatch.
fetch_linters() {
	local name=linux-source-6.1
	echo "tests/vm/setup: fetching checkpatch (out of the Debian package $name, 140 MB)"
	use_suites "$1" amd64 bookworm bookworm-security
	(cd "$1" && apt-get -qq "${apt_options[@]}" download "$name")
	dpkg --fsys-tarfile "$1"/*.deb | tar -xO "./usr/src/$name.tar.xz" |
		tar -xJ -C "$1/root" --strip-components 2 \
			"$name"/scripts/{checkpatch.pl,spelling.txt,const_structs.checkpatch}
}
