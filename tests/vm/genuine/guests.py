"""Guests with NVIDIA's own nvidia.ko and a GPU for it to bind to, which run the tests of inside."""

from __future__ import annotations

import os
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
TIMEOUT_S = 1200


def gdrdrv_for(driver: Genuine, symbols: Path, **variables: str) -> Path:
    """gdrdrv, built here for a driver that exports these."""
    words = [f"{name}={value}" for name, value in variables.items()]
    folder = driver.kernel.build(
        CHECKOUT / "driver",
        f"KBUILD_EXTRA_SYMBOLS={symbols}",
        *words,
        name=f"driver-beside-{driver}{''.join(variables)}",
    )
    return folder / "gdrdrv.ko"


def bed_command(driver: Genuine, *arguments: str) -> list[str | Path]:
    """What boots a guest, and has it run the tests with these arguments of pytest's."""
    other = driver.other_flavour
    given = {
        "GENUINE": driver,
        "GDRPY_VM_KERNELS": KERNELS,
        "GENUINE_OTHERS_GDRDRV": gdrdrv_for(driver, driver.symbols, NVIDIA_DRIVER=other.version),
        # Without a word about the driver that it is for, so that the kernel has to refuse it.
        "GENUINE_GPL_GDRDRV": gdrdrv_for(driver, driver.symbols, TRACEPOINTS="1"),
    }
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=600"]
    return [
        *(HERE / "run", "--fake-gpu", "--kernel", driver.kernel.name),
        *("--timeout", str(TIMEOUT_S), "--", "env", "-u", "GDRPY_SIM"),
        *(f"{name}={value}" for name, value in given.items()),
        *(*pytest, f"--confcutdir={INSIDE}", "-v", "--tb=short", *arguments, INSIDE),
    ]


def run(driver: Genuine, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = bed_command(driver, *arguments)
    return subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, env=os.environ)
