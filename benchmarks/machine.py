"""The machine of a run: everything that a figure must travel with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gdrpy
from gdrpy import cuda
from gdrpy._core import _ffi
from gdrpy._core.driver import driver_version
from gdrpy.cli.header import cuda_version, gdrpy_version
from gdrpy.copies.tuning import BUILT_IN, cpu_model, limits

_ROOT = Path(__file__).resolve().parent.parent

#: The environment variables that affect the figures.
_CHOICES = ("CUDA_VISIBLE_DEVICES", "GDRPY_BACKEND", "GDRPY_SIM", "GDRPY_TUNING")

#: The libraries whose versions a header has.
_LIBRARIES = (
    "numpy",
    "cuda-bindings",
    "torch",
    "cupy",
    "numba-cuda",
    "vllm",
    "torch-memory-saver",
)

_PCI = Path("/sys/bus/pci/devices")


#: The default script.
RUN = "benchmarks/run.py"


def describe(arguments: Sequence[str], commit: str | None, script: str = RUN) -> dict[str, Any]:
    """The header of a result. Unknown values are None.

    ``arguments`` are those of the script; ``commit`` is its option for machines without git.
    """
    gpu = cuda.device_info(0)
    with gdrpy.alloc(1) as region:
        backend, mapping_type = region.cpu.backend, region.cpu.mapping_type.name.lower()
    return {
        "command": command(arguments, script),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit or _git("rev-parse", "HEAD"),
        "dirty": None if commit else _dirty(),
        "gpu": gpu.name,
        "simulated": gpu.simulated,
        "pci": gpu.pci,
        "pcie_link": None if gpu.simulated else _pcie_link(gpu.pci),
        "nvidia_driver": driver_version(),
        "cuda_driver": cuda_version(),
        "backend": backend,
        "mapping_type": mapping_type,
        "limits": limits(0)._asdict(),
        "limits_measured": limits(0) != BUILT_IN,
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": kernel_version(),
        "python": platform.python_version(),
        "gdrpy": gdrpy_version(),
        **{name.replace("-", "_"): _version(name) for name in _LIBRARIES},
        "clock_resolution_ns": _clock_resolution(),
        "copy_routines": {
            f"{direction} {nbytes} B": _ffi.ffi.string(routine(nbytes)).decode()
            for direction, routine in (
                ("to a write-combined mapping", _ffi.lib.core_routine_to_wc),
                ("from a write-combined mapping", _ffi.lib.core_routine_from_wc),
            )
            for nbytes in (64, 1 << 20)
        },
    }


def kernel_version() -> str:
    """The version of the running kernel, without its distributor's suffix: ``6.12.48``."""
    return platform.release().partition("-")[0]


def command(arguments: Sequence[str], script: str = RUN) -> str:
    """The command that repeats the measurement from the top of a checkout."""
    chosen = [f"{name}={os.environ[name]}" for name in _CHOICES if os.environ.get(name)]
    return shlex.join([*chosen, "python", script, *arguments])


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _dirty() -> bool | None:
    """Whether a tracked file differs from the commit."""
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return None if changed is None else bool(changed)


def _version(distribution: str) -> str | None:
    """The version of an installed distribution; wheels of cupy are named after their CUDA."""
    for name in (distribution, *(f"{distribution}-cuda{major}x" for major in (12, 13))):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _pcie_link(pci: str) -> str | None:
    try:
        speed, width = (
            (_PCI / pci / f"current_link_{what}").read_text().strip() for what in ("speed", "width")
        )
    except OSError:
        return None
    return f"{speed} x{width}"


def _clock_resolution() -> int:
    """The smallest observed step of the clock in ns."""
    steps = []
    for _ in range(1000):
        before = after = time.perf_counter_ns()
        while after == before:
            after = time.perf_counter_ns()
        steps.append(after - before)
    return min(steps)
