"""Other ways from Python to the same bytes of GPU memory, each used as its documentation shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Protocol

import numpy as np

from gdrpy import Region, cuda
from harness import Contender, Session, Statement
from payload import GpuBytes, fills, lands, pinned, returns


class Rival(Protocol):
    """A library that copies between host memory and the start of a region."""

    def writes(self, data: bytes) -> list[Contender]:
        """Its ways to write bytes to the region."""

    def reads(self, nbytes: int) -> list[Contender]:
        """Its ways to read the region's first bytes."""


class CudaBindings:
    """``cuMemcpyHtoD`` and ``cuMemcpyDtoH`` of cuda.bindings."""

    def __init__(self, undo: ExitStack, region: Region) -> None:
        self._undo = undo
        self._driver = cuda.driver()
        self._gpu = GpuBytes(region.ptr)
        self._ptr = self._driver.CUdeviceptr(region.ptr)

    def writes(self, data: bytes) -> list[Contender]:
        host = self._undo.enter_context(pinned(len(data)))
        host[:] = np.frombuffer(data, np.uint8)
        verify = lands(self._gpu, data)

        def copy(source: object) -> Statement:
            return Statement(
                "copy(ptr, source, nbytes)",
                copy=self._driver.cuMemcpyHtoD,
                ptr=self._ptr,
                source=source,
                nbytes=len(data),
            )

        return [
            Contender("cuMemcpyHtoD", "cuda.bindings, from a bytes object", copy(data), verify),
            Contender(
                "cuMemcpyHtoD, pinned",
                "cuda.bindings, from page-locked memory",
                copy(host.ctypes.data),
                verify,
            ),
        ]

    def reads(self, nbytes: int) -> list[Contender]:
        host = self._undo.enter_context(pinned(nbytes))
        pageable = np.empty(nbytes, np.uint8)

        def copy(target: object) -> Statement:
            return Statement(
                "copy(target, ptr, nbytes)",
                copy=self._driver.cuMemcpyDtoH,
                ptr=self._ptr,
                target=target,
                nbytes=nbytes,
            )

        return [
            Contender(
                "cuMemcpyDtoH",
                "cuda.bindings, into an existing numpy array, given by its address",
                copy(pageable.ctypes.data),
                fills(self._gpu, pageable),
            ),
            Contender(
                "cuMemcpyDtoH, pinned",
                "cuda.bindings, into page-locked memory",
                copy(host.ctypes.data),
                fills(self._gpu, host),
            ),
        ]


class Torch:
    """Tensors of torch, on the region's own bytes."""

    def __init__(self, region: Region) -> None:
        import torch

        self._torch = torch
        self._gpu = GpuBytes(region.ptr)
        self._tensor = torch.as_tensor(region, device=f"cuda:{region.device}")

    def writes(self, data: bytes) -> list[Contender]:
        source = self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8)
        statement = Statement(
            "copy(source); synchronize()",
            copy=self._tensor[: len(data)].copy_,
            source=source,
            synchronize=self._torch.cuda.synchronize,
        )
        return [
            Contender(
                "torch copy_",
                "tensor.copy_() from a CPU tensor, then torch.cuda.synchronize()",
                statement,
                lands(self._gpu, data),
            )
        ]

    def reads(self, nbytes: int) -> list[Contender]:
        statement = Statement("result = fetch()", fetch=self._tensor[:nbytes].cpu)
        verify = returns(self._gpu, nbytes, lambda tensor: bytes(tensor.numpy().tobytes()))
        return [Contender("torch cpu", "tensor.cpu(), a new CPU tensor", statement, verify)]


class Cupy:
    """Arrays of cupy, on the region's own bytes."""

    def __init__(self, region: Region) -> None:
        import cupy

        self._gpu = GpuBytes(region.ptr)
        with cupy.cuda.Device(region.device):
            self._array = cupy.asarray(region)

    def writes(self, data: bytes) -> list[Contender]:
        statement = Statement(
            "put(source)",
            put=self._array[: len(data)].set,
            source=np.frombuffer(data, np.uint8),
        )
        return [
            Contender(
                "cupy set",
                "ndarray.set() from a numpy array, on the default stream",
                statement,
                lands(self._gpu, data),
            )
        ]

    def reads(self, nbytes: int) -> list[Contender]:
        statement = Statement("result = fetch()", fetch=self._array[:nbytes].get)
        verify = returns(self._gpu, nbytes, lambda array: bytes(array.tobytes()))
        return [Contender("cupy get", "ndarray.get(), a new numpy array", statement, verify)]


#: Rivals that may be missing, and the ways in which each takes part.
_OPTIONAL: dict[str, Callable[[Region], Rival]] = {"torch": Torch, "cupy": Cupy}


@contextmanager
def rivals(session: Session, region: Region) -> Iterator[list[Rival]]:
    """Everybody who can take part here; who cannot is noted in the session with the reason."""
    with ExitStack() as undo:
        found: list[Rival] = [CudaBindings(undo, region)]
        for name, make in _OPTIONAL.items():
            session.step(f"loading {name}")
            reason = _why_not(name) or _join(found, make, region)
            if reason:
                session.absent[name] = reason
        yield found


def _why_not(name: str) -> str | None:
    if find_spec(name) is None:
        return "not installed"
    if cuda.simulated():
        return "cannot use the simulated GPU"
    return None


def _join(found: list[Rival], make: Callable[[Region], Rival], region: Region) -> str | None:
    try:
        found.append(make(region))
    except Exception as error:  # a broken installation of somebody else's must not end the run
        return f"{type(error).__name__}: {error}"
    return None


def all_writes(found: list[Rival], data: bytes) -> list[Contender]:
    """Every rival's ways to write ``data``."""
    return [way for rival in found for way in rival.writes(data)]


def all_reads(found: list[Rival], nbytes: int) -> list[Contender]:
    """Every rival's ways to read ``nbytes`` bytes."""
    return [way for rival in found for way in rival.reads(nbytes)]
