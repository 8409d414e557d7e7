"""Other ways from Python to the same bytes of GPU memory, each used as its documentation shows.

A way returns when its source may be changed, and work launched afterwards sees the bytes, as with
gdrpy: where a library only queues a copy from memory that the GPU still reads, a synchronization
follows.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Protocol

import numpy as np

from arraylibraries import Cupy, Numba, Torch
from gdrpy import Region, cuda
from harness import Contender, Session, Statement
from payload import Bytes, GpuBytes, fills, lands, payload
from words import PAGEABLE, PINNED, way

BINDINGS = "cuda.bindings"


class Rival(Protocol):
    """A library that copies between host memory and the start of a region."""

    def writes(self, data: Bytes) -> list[Contender]:
        """Its ways to write bytes to the region, from both kinds of memory."""

    def reads(self, target: Bytes) -> list[Contender]:
        """Its ways to read as many of the region's bytes, into both kinds, or a new object."""


class CudaBindings:
    """``cuMemcpyHtoD`` and ``cuMemcpyDtoH`` of cuda.bindings."""

    def __init__(self, region: Region, host: Bytes) -> None:
        self._driver = cuda.driver()
        self._gpu = GpuBytes(region.ptr)
        self._ptr = self._driver.CUdeviceptr(region.ptr)
        self._pinned = host

    def _copy(self, function: str, first: object, second: object, nbytes: int) -> Statement:
        return Statement(
            "copy(first, second, nbytes)",
            copy=getattr(self._driver, function),
            first=first,
            second=second,
            nbytes=nbytes,
        )

    def writes(self, data: Bytes) -> list[Contender]:
        host = self._pinned[: data.nbytes]
        host[:] = data
        return [
            Contender(
                way(BINDINGS, kind),
                f"cuMemcpyHtoD from {words}",
                self._copy("cuMemcpyHtoD", self._ptr, source.ctypes.data, data.nbytes),
                lands(self._gpu, data),
            )
            for kind, words, source in (
                (PAGEABLE, "a numpy array, given by its address", data),
                (PINNED, "page-locked memory", host),
            )
        ]

    def reads(self, target: Bytes) -> list[Contender]:
        host = self._pinned[: target.nbytes]
        return [
            Contender(
                way(BINDINGS, kind),
                f"cuMemcpyDtoH into {words}",
                self._copy("cuMemcpyDtoH", into.ctypes.data, self._ptr, into.nbytes),
                fills(self._gpu, into),
            )
            for kind, words, into in (
                (PAGEABLE, "a numpy array, given by its address", target),
                (PINNED, "page-locked memory", host),
            )
        ]


#: Rivals that may be missing, and the modules that they are.
_OPTIONAL: dict[str, Callable[[Region], Rival]] = {"torch": Torch, "cupy": Cupy, "numba": Numba}

#: The names of the rivals in their ways.
NAMES = (BINDINGS, Torch.name, Cupy.name, Numba.name)


def rivals(session: Session, region: Region, host: Bytes) -> list[Rival]:
    """The rivals that can take part; the session notes why others cannot.

    cuda.bindings uses ``host`` as its page-locked memory, of at least the region's size. If it is
    that of the ways that it is compared with, all find it in the same state of the CPU's caches.
    """
    found: list[Rival] = [CudaBindings(region, host)]
    for name, make in _OPTIONAL.items():
        session.step(f"loading {name}")
        reason = _why_not(name) or _join(found, make, region)
        if reason:
            session.absent[name] = reason
    return found


def _why_not(name: str) -> str | None:
    if find_spec(name) is None:
        return "not installed"
    if cuda.simulated():
        return "cannot use the simulated GPU"
    return None


def _join(found: list[Rival], make: Callable[[Region], Rival], region: Region) -> str | None:
    nbytes = min(region.nbytes, 64)
    try:
        rival = make(region)
        for one in (
            *rival.writes(payload(nbytes).copy()),
            *rival.reads(np.empty(nbytes, np.uint8)),
        ):
            one.timed.once()
        found.append(rival)
    except Exception as error:  # a broken installation of a rival must not end the run
        return f"{type(error).__name__}: {error}"
    return None


def all_writes(found: list[Rival], data: Bytes) -> list[Contender]:
    """Every rival's ways to write ``data``."""
    return [one for rival in found for one in rival.writes(data)]


def all_reads(found: list[Rival], target: Bytes) -> list[Contender]:
    """Every rival's ways to read as many bytes as ``target`` has."""
    return [one for rival in found for one in rival.reads(target)]
