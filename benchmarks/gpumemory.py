"""Memory and BAR1 of a GPU in use, from NVML, and its free memory, from CUDA."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gdrpy import cuda

_LIBRARY = "libnvidia-ml.so.1"


class NoNvml(Exception):
    """NVML cannot be asked here; the message says why."""


@dataclass(frozen=True)
class Use:
    """Bytes in use of one GPU, by all processes."""

    memory: int
    bar1: int


class _Amounts(ctypes.Structure):
    """As NVML fills it: memory has total, free, used; BAR1 the same."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Nvml:
    """The library, initialized."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise NoNvml(str(error)) from None

    def use(self, pci: str) -> Use:
        """The use of the GPU at a PCI address. Raises NoNvml."""
        device = ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByPciBusId_v2", pci.encode(), ctypes.byref(device))
        found = []
        for name in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetBAR1MemoryInfo"):
            amounts = _Amounts()
            self.call(name, device, ctypes.byref(amounts))
            found.append(int(amounts.used))
        return Use(*found)

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise NoNvml(f"{name} answered {status}")


@contextmanager
def nvml() -> Iterator[Nvml]:
    """NVML for a while. Raises NoNvml."""
    library = Nvml()
    library.call("nvmlInit_v2")
    try:
        yield library
    finally:
        library.call("nvmlShutdown")


def free_nbytes() -> int:
    """The free memory of the current context's GPU."""
    return int(cuda.call("cuMemGetInfo")[0])


def memory_back(free: int, seconds: float) -> bool:
    """Whether the GPU has as much free memory again within so many seconds."""
    deadline = time.monotonic() + seconds
    while free_nbytes() < free:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)
    return True


def users() -> set[int]:
    """The processes that have a GPU's device file open, as far as this user may see."""
    return {int(one.name) for one in Path("/proc").glob("[0-9]*") if _has_gpu_open(one)}


def _has_gpu_open(process: Path) -> bool:
    try:
        links = list((process / "fd").iterdir())
    except OSError:  # it has ended, or belongs to another user
        return False
    return any(_target(link).startswith("/dev/nvidia") for link in links)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # it was closed
        return ""
