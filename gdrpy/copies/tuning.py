"""The limits in use, which decide the path of a copy by its size: measured or built in.

``gdrpy tune`` measures limits on this machine and stores them, for each GPU model, in
``$XDG_CACHE_HOME`` (``~/.cache``) under ``gdrpy/``. They are used only with the GPU, driver and CPU
that they were measured on. With ``GDRPY_TUNING=0`` no stored limits are read.
"""

import errno
import functools
import os
import re
import stat
import sys
import warnings
from typing import Any, NamedTuple

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy._core.driver import driver_version

#: The threshold of a path that is never the fastest.
NEVER = sys.maxsize

#: The sizes of the C core's thread pools.
MOST_THREADS = 16
MOST_LANES = 8


class Limits(NamedTuple):
    """Sizes in bytes from which a copy path is the fastest, and how many threads it uses.

    For writes and for reads: ``threads``: stores or loads by several threads instead of one.
    ``dma``: DMA from ordinary memory through staging, by up to ``lanes`` threads, where there is no
    copy engine. ``dma_pinned``: DMA from page-locked memory. ``engine``: the copy engine from
    ordinary memory, through staging. ``registered``: the copy engine from memory that is
    registered for it. ``threads_to`` and ``threads_from``: the number of threads.
    """

    write_threads: int
    write_dma: int
    write_dma_pinned: int
    write_engine: int
    write_registered: int
    read_threads: int
    read_dma: int
    read_dma_pinned: int
    read_engine: int
    read_registered: int
    threads_to: int
    threads_from: int
    lanes: int

    def check(self) -> None:
        """Raise ValueError for values out of range."""
        counts = {"threads_to": MOST_THREADS, "threads_from": MOST_THREADS, "lanes": MOST_LANES}
        for name, value in self._asdict().items():
            least, most = (1, counts[name]) if name in counts else (0, NEVER)
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name} must be a number from {least} to {most}, not {value!r}")


_CPUS = len(os.sched_getaffinity(0))

#: As measured on an H200 behind PCIe Gen5 x16, on 16 CPUs: see docs/transfers.md. Writes are staged
#: on 8 CPUs or more: on an H100, 4 threads reach 25 GB/s and 8 reach 45, and stores 20 to 33.
BUILT_IN = Limits(
    write_threads=1 << 20,
    write_dma=64 << 20 if _CPUS >= MOST_LANES else NEVER,
    write_dma_pinned=256 << 10,
    write_engine=48 << 20 if _CPUS >= MOST_LANES else NEVER,
    write_registered=192 << 10,
    read_threads=128 << 10,
    read_dma=7 << 10,
    read_dma_pinned=64 << 10,
    read_engine=3584,
    read_registered=3 << 10,
    threads_to=min(4, _CPUS),
    threads_from=min(MOST_THREADS, _CPUS),
    lanes=min(MOST_LANES, _CPUS),
)


@functools.cache
def limits(device: int | str) -> Limits:
    """The limits for memory on a device: its CUDA ordinal, or without CUDA the memory's location.

    The built-in ones for memory that is not on an NVIDIA GPU.
    """
    if os.environ.get("GDRPY_TUNING") == "0":
        return BUILT_IN
    return load(device) or BUILT_IN


def forget() -> None:
    """Read the stored limits again, for regions that have not copied yet."""
    limits.cache_clear()


#: The most bytes that are read of a file; a file of limits is smaller.
_MOST_BYTES = 1 << 16


def path(device: int | str) -> str:
    """The file with the limits of a device's model.

    Raises FileNotFoundError without a home, and for a location that is no GPU's.
    """
    name = re.sub(r"[^a-z0-9]+", "-", _gpu(device).lower()).strip("-")
    return os.path.join(_cache(), "gdrpy", f"limits-{name}.json")


def origin(device: int | str) -> dict[str, Any]:
    """The hardware and driver that limits are valid for."""
    simulated = isinstance(device, int) and cuda.simulated()
    return {
        "gpu": _gpu(device),
        "driver": None if simulated else driver_version(),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
    }


def load(device: int | str) -> Limits | None:
    """The stored limits of a device, None if there are none that this process can read and use,
    or if another version of gdrpy stored them.

    Warns of a file that cannot be understood.
    """
    try:
        file = path(device)
        content = _read(file)
        import json  # its import takes as long as a first copy

        found = json.loads(content)
        if found["origin"] != origin(device) or found["limits"].keys() != set(Limits._fields):
            return None
        limits = Limits(**found["limits"])
        limits.check()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        warnings.warn(
            f"{file} cannot be used ({type(error).__name__}: {error}): using built-in limits; "
            f"run gdrpy tune again, or delete it",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return limits


def save(device: int | str, limits: Limits, **details: Any) -> str:
    """Store limits, with details of their measurement; returns the file.

    Raises ValueError, OSError.
    """
    import json

    limits.check()
    file = path(device)
    os.makedirs(os.path.dirname(file), exist_ok=True)
    text = json.dumps(
        {"origin": origin(device), "limits": limits._asdict(), **details}, indent=1, allow_nan=False
    )
    # Another process reads the old file or the new one, never a part of one.
    draft = f"{file}.{os.getpid()}"
    with Undo() as undo:
        with open(draft, "w") as opened:
            undo.callback(os.unlink, draft)
            opened.write(text + "\n")
        os.replace(draft, file)
        undo.forget()
    return file


def _cache() -> str:
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # the XDG specification says to ignore a relative path
        return given
    home = os.path.expanduser("~")
    if home == "~":
        why = "this user has no home folder: set XDG_CACHE_HOME"
        raise FileNotFoundError(errno.ENOENT, why, "~/.cache")
    return os.path.join(home, ".cache")


def _read(file: str) -> bytes:
    """The beginning of a regular file. Does not wait for a pipe in its place."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise ValueError("not a regular file")
        return opened.read(_MOST_BYTES)


def _gpu(device: int | str) -> str:
    """A device's model. Without CUDA the kernel driver tells that of a PCI address."""
    if isinstance(device, str):
        information = f"/proc/driver/nvidia/gpus/{device}/information"
        try:
            with open(information, errors="replace") as file:
                return file.readline().partition(":")[2].strip()
        except OSError as error:
            raise FileNotFoundError(error.errno, error.strerror, information) from error
    name: bytes = cuda.call("cuDeviceGetName", 128, cuda.device(device))
    return name.split(b"\0")[0].decode()


def cpu_model() -> str:
    """The CPU's model name from /proc/cpuinfo, else its architecture."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return os.uname().machine
