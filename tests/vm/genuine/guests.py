"""Guests with NVIDIA's own nvidia.ko and a GPU for it to bind to, which run the tests of inside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kernels import CHECKOUT, HERE, KERNELS, Genuine

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


def gdrdrv_for(driver: Genuine, **variables: str) -> Path:
    """gdrdrv, built here with what a driver exports, and these variables of make's."""
    words = [f"{name}={value}" for name, value in variables.items()]
    name = f"driver-beside-{driver}-{'-'.join(filter(None, variables.values()))}"
    symbols = f"KBUILD_EXTRA_SYMBOLS={driver.symbols}"
    return driver.kernel.build(CHECKOUT / "driver", symbols, *words, name=name) / "gdrdrv.ko"


def bed_command(driver: Genuine, *arguments: str, build: bool) -> list[str | Path]:
    """What boots a guest, and has it run the tests with these arguments of pytest's.

    Without ``build`` the guest gets gdrdrv ready-built: its own compiler is emulated.
    """
    other = driver.other_flavour
    given = {
        "GENUINE": driver,
        "GDRPY_VM_KERNELS": KERNELS,
        "GENUINE_OTHERS_GDRDRV": gdrdrv_for(driver, NVIDIA_DRIVER=other.version),
        # Without a word about the driver that it is for, so that the kernel has to refuse it.
        "GENUINE_GPL_GDRDRV": gdrdrv_for(driver, NVIDIA_DRIVER="", TRACEPOINTS="1"),
    }
    if not build:
        given["GENUINE_GDRDRV"] = gdrdrv_for(driver, NVIDIA_DRIVER=driver.version)
    # The calls of the other file have nvidia.ko take locks in a way that lockdep reports.
    tests = INSIDE / "test_beside_nvidia.py" if driver == WITH_CHECKERS else INSIDE
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=900"]
    pytest += ["-p", "no:hypothesispytest"]  # takes seconds to import in a guest
    return [
        *(HERE / "run", "--fake-gpu", "--kernel", driver.kernel.name),
        *("--", "env", "-u", "GDRPY_SIM"),
        *(f"{name}={value}" for name, value in given.items()),
        *(*pytest, f"--confcutdir={INSIDE}", "-v", "--tb=short", *arguments, tests),
    ]


def run(driver: Genuine, *arguments: str, build: bool = False) -> subprocess.CompletedProcess[str]:
    command = bed_command(driver, *arguments, build=build)
    return subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT)
