"""Guests with NVIDIA's own nvidia.ko and a GPU for it to bind to, which run the tests of inside."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from kernels import CHECKOUT, HERE, KERNELS, Genuine, Kernel

INSIDE = HERE / "genuine/inside"
#: The names that setup knows them by begin with genuine.
DRIVERS = tuple(
    Genuine.of(name)
    for name in (
        "535-open-debian",
        "535-proprietary-debian",
        "550-open-backports",
        "550-proprietary-backports",
    )
)
WITH_CHECKERS = Genuine.of("535-open-debug")
ALL = (*DRIVERS, WITH_CHECKERS)


def by_kernel(drivers: Iterable[Genuine]) -> list[list[Genuine]]:
    """Those of one kernel together, which one guest can load one after the other."""
    found: dict[Kernel, list[Genuine]] = {}
    for driver in drivers:
        found.setdefault(driver.kernel, []).append(driver)
    return list(found.values())


def gdrdrv_for(driver: Genuine, **variables: str) -> Path:
    """gdrdrv, built here with what a driver exports, and these variables of make's."""
    words = [f"{name}={value}" for name, value in variables.items()]
    name = f"driver-beside-{driver}-{'-'.join(filter(None, variables.values()))}"
    symbols = f"KBUILD_EXTRA_SYMBOLS={driver.symbols}"
    return driver.kernel.build(CHECKOUT / "driver", symbols, *words, name=name) / "gdrdrv.ko"


def tests_beside(driver: Genuine, *arguments: str, build: bool) -> list[str | Path]:
    """The command that runs the tests in a guest, with these arguments of pytest's."""
    other = driver.other_flavour
    others_exports = other if other.built else driver
    given = {
        "GENUINE": driver,
        "GDRPY_VM_KERNELS": KERNELS,
        "GENUINE_OTHERS_GDRDRV": gdrdrv_for(others_exports, NVIDIA_DRIVER=other.version),
        # Without a word about the driver that it is for, so that the kernel has to refuse it.
        "GENUINE_GPL_GDRDRV": gdrdrv_for(driver, NVIDIA_DRIVER="", TRACEPOINTS="1"),
    }
    if not build:
        given["GENUINE_GDRDRV"] = gdrdrv_for(driver, NVIDIA_DRIVER=driver.version)
    # The calls of the other file have nvidia.ko take locks in a way that lockdep reports.
    tests = INSIDE / "test_beside_nvidia.py" if driver == WITH_CHECKERS else INSIDE
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=900"]
    return [
        *("env", "-u", "GDRPY_SIM"),
        *(f"{name}={value}" for name, value in given.items()),
        *(*pytest, f"--confcutdir={INSIDE}", "-v", "--tb=short", *arguments, tests),
    ]


def run(
    drivers: Sequence[Genuine], *arguments: str, build: Container[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Boots a guest that runs the tests beside each of the drivers, which are for one kernel.

    The guest builds gdrdrv for the drivers that ``build`` names, and gets it ready-built for the
    others, because its own compiler is emulated.
    """
    (kernel,) = {driver.kernel for driver in drivers}
    commands = [tests_beside(one, *arguments, build=str(one) in build) for one in drivers]
    script = "\n".join(shlex.join(map(str, command)) for command in commands)
    bed = [HERE / "run", "--fake-gpu", "--kernel", kernel.name, "--", "bash", "-euc", script]
    return subprocess.run(bed, capture_output=True, text=True, cwd=CHECKOUT)
