"""The package beside both of Debian's own -dkms packages of NVIDIA's driver, which DKMS builds.

A minute for each driver and kernel, four in all, on two cores: so only where it is asked for.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from machine_copy import Machine, Machines, built_for

VM = Path(__file__).parents[1] / "vm"

#: For DKMS: nvidia.ko alone of the five modules, and what 535 lacks for later kernels.
MAKE = r"""
shim=$(grep -qs "[( ]pci_resize_resource(.* size,$" \
	"/usr/src/linux-headers-${kernelver%-amd64}-common/include/linux/pci.h" &&
	echo "-include /root/shim.h") || true
MAKE[0]="env NVIDIA_CFLAGS='$shim' make -j$(nproc) modules CC=gcc KERNEL_UNAME=$kernelver \
	NV_KERNEL_MODULES=nvidia"
"""


@pytest.fixture(scope="module")
def packages() -> list[Path]:
    """Debian's, of both flavours, as tests/vm/setup fetches them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kernels = Path(os.environ.get("GDRPY_VM_KERNELS") or cache / "gdrpy-vm")
    names = [f"nvidia-535-{flavour}" for flavour in ("open", "proprietary")]
    found = [path for name in names for path in kernels.glob(f"{name}/package/*.deb")]
    if len(found) != len(names):
        pytest.skip(f"tests/vm/setup {' '.join(names)} fetches the packages")
    return found


@pytest.fixture(scope="module")
def releases(need: Callable[..., None]) -> tuple[str, str]:
    """Of an older kernel's headers, and of those that this machine has."""
    need("dkms", "linux-headers-amd64")
    listed = subprocess.run(
        ["apt-cache", "search", "--names-only", r"^linux-headers-6\.1\.0-[0-9]+-amd64$"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.findall(r"^linux-headers-(6\.1\.0-(\d+)-amd64)", listed.stdout, re.MULTILINE)
    if len(found) < 2:
        pytest.skip("needs two releases of linux-headers-6.1 in this machine's package lists")
    ordered = sorted(found, key=lambda one: int(one[1]))
    return ordered[0][0], ordered[-1][0]


def headers(release: str) -> list[str]:
    return [f"linux-headers-{release}", f"linux-headers-{release.removesuffix('amd64')}common"]


@pytest.fixture(scope="module")
def machine(
    machines: Machines, deb: Path, packages: list[Path], releases: tuple[str, str]
) -> Machine:
    """With the older kernel's headers, both of Debian's packages, and ours."""
    older, newer = releases
    machine = machines.copy()
    machine.run("dpkg", "-r", "--force-depends", *headers(newer))
    machine.run("sh", "-c", f"cd /root && apt-get -qq download {' '.join(headers(older))}")
    machine.run("sh", "-c", f"cd /root && apt-get -qq download {' '.join(headers(newer))}")
    machine.run("sh", "-c", f"dpkg -i /root/linux-headers-{older.removesuffix('amd64')}*.deb")
    machine.put(VM / "genuine/shim.h")
    # Firmware and the choice among drivers, which they depend on, tell nothing here.
    for package in packages:
        machine.run("dpkg", "--unpack", "--force-depends", machine.put(package))
    change = f"sed -i '/\\[[1-4]\\]=/d' $conf; cat >> $conf <<'END'\n{MAKE}END\n"
    machine.run("sh", "-c", f"for conf in /usr/src/nvidia-*/dkms.conf; do {change}done")
    machine.run("dpkg", "--configure", "--force-depends", "--pending")
    machine.run("dpkg", "-i", machine.put(deb))
    return machine


def modules(machine: Machine, release: str) -> list[str]:
    """Those that DKMS has installed."""
    return sorted(machine.run("ls", f"/lib/modules/{release}/updates/dkms").split())


ALL = ["gdrdrv.ko", "nvidia-current-open.ko", "nvidia-current.ko"]


@pytest.mark.timeout(3600)
class TestBothFlavours:
    def test_are_installed_beside_gdrdrv(self, machine: Machine, releases: tuple[str, str]) -> None:
        assert modules(machine, releases[0]) == ALL
        assert built_for(machine, releases[0]).endswith("-proprietary")

    def test_are_built_for_a_new_kernel_before_gdrdrv(
        self, machines: Machines, machine: Machine, releases: tuple[str, str]
    ) -> None:
        updated = machines.copy(of=machine)
        release = releases[1].removesuffix("amd64")
        updated.run("sh", "-c", f"dpkg -i --force-depends /root/linux-headers-{release}*.deb")
        assert modules(updated, releases[1]) == ALL
        assert built_for(updated, releases[1]).endswith("-proprietary")

    def test_gdrdrv_follows_the_one_that_stays(
        self, machines: Machines, machine: Machine, releases: tuple[str, str]
    ) -> None:
        left = machines.copy(of=machine)
        left.run("dpkg", "-r", "--force-depends", "nvidia-kernel-dkms")
        left.run("dpkg", "--triggers-only", "--pending")
        assert modules(left, releases[0]) == ALL[:2]
        assert built_for(left, releases[0]).endswith("-open")
