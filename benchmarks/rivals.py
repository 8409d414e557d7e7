"""Other ways from Python to the same bytes of GPU memory, each used as its documentation shows.

What is copied is there when a way returns, as with gdrpy: where a library only queues the copy, a
synchronization follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from gdrpy import Region, cuda
from harness import Contender, Session, Statement, Verify
from payload import Bytes, GpuBytes, fills, lands, pinned, returns

#: The kinds of host memory that ways are compared for.
PAGEABLE = "pageable"
PINNED = "pinned"
NEW = "new"

BINDINGS = "cuda.bindings"


class Rival(Protocol):
    """A library that copies between host memory and the start of a region."""

    def writes(self, data: Bytes) -> list[Contender]:
        """Its ways to write bytes to the region, from both kinds of memory."""

    def reads(self, target: Bytes) -> list[Contender]:
        """Its ways to read as many of the region's bytes, into both kinds, or a new object."""


def way(name: str, kind: str) -> str:
    """What a way is called, by who copies and the kind of host memory, if that is of interest."""
    return f"{name}, {kind}" if kind else name


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


class _Library:
    """A library with GPU arrays of its own: how it copies one to and from arrays of the host."""

    name: str
    put_words: str
    get_words: str

    def __init__(self, region: Region) -> None:
        self._gpu = GpuBytes(region.ptr)

    def _host(self, array: Bytes) -> Any:
        """An array of bytes as the library takes it."""
        return array

    def _pinned(self, nbytes: int) -> Bytes:
        """The first bytes of page-locked memory as the library makes it."""
        raise NotImplementedError

    def _put(self, source: Any, nbytes: int, pinned: bool) -> Statement:
        raise NotImplementedError

    def _get(self, target: Any, nbytes: int) -> Statement:
        raise NotImplementedError

    def _fetch(self, nbytes: int) -> tuple[str, Statement, Verify]:
        """In words, its way to a new object of the host."""
        raise NotImplementedError

    def writes(self, data: Bytes) -> list[Contender]:
        host = self._pinned(data.nbytes)
        host[:] = data
        verify = lands(self._gpu, data)
        return [
            Contender(
                way(self.name, kind),
                f"{self.put_words}, from {kind} memory",
                self._put(self._host(source), data.nbytes, kind == PINNED),
                verify,
            )
            for kind, source in ((PAGEABLE, data), (PINNED, host))
        ]

    def reads(self, target: Bytes) -> list[Contender]:
        words, fetch, verify = self._fetch(target.nbytes)
        return [
            *(
                Contender(
                    way(self.name, kind),
                    f"{self.get_words}, into {kind} memory",
                    self._get(self._host(into), target.nbytes),
                    fills(self._gpu, into),
                )
                for kind, into in ((PAGEABLE, target), (PINNED, self._pinned(target.nbytes)))
            ),
            Contender(way(self.name, NEW), words, fetch, verify),
        ]


class Torch(_Library):
    """Tensors of torch, on the region's own bytes."""

    name = "torch"
    put_words = "tensor.copy_(CPU tensor), then torch.cuda.synchronize()"
    get_words = "CPU tensor.copy_(tensor)"

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        import torch

        self._torch = torch
        self._tensor = torch.as_tensor(region, device=f"cuda:{region.device}")
        self._memory = torch.empty(region.nbytes, dtype=torch.uint8, pin_memory=True)

    def _host(self, array: Bytes) -> Any:
        if array.ctypes.data == self._memory.data_ptr():  # keeps the tensor that is known as pinned
            return self._memory[: array.nbytes]
        return self._torch.from_numpy(array)

    def _pinned(self, nbytes: int) -> Bytes:
        array: Bytes = self._memory.numpy()[:nbytes]
        return array

    def _put(self, source: Any, nbytes: int, pinned: bool) -> Statement:
        return Statement(
            f"copy(source, non_blocking={pinned}); synchronize()",
            copy=self._tensor[:nbytes].copy_,
            source=source,
            synchronize=self._torch.cuda.synchronize,
        )

    def _get(self, target: Any, nbytes: int) -> Statement:
        return Statement("copy(source)", copy=target.copy_, source=self._tensor[:nbytes])

    def _fetch(self, nbytes: int) -> tuple[str, Statement, Verify]:
        return (
            "tensor.cpu(), a new CPU tensor",
            Statement("result = fetch()", fetch=self._tensor[:nbytes].cpu),
            returns(self._gpu, nbytes, lambda tensor: tensor.numpy()),
        )


class Cupy(_Library):
    """Arrays of cupy, on the region's own bytes."""

    name = "cupy"
    put_words = "ndarray.set(array), then a synchronization of the stream"
    get_words = "ndarray.get(out=array)"

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        import cupy
        import cupyx

        with cupy.cuda.Device(region.device):
            self._array = cupy.asarray(region)
        self._synchronize = cupy.cuda.get_current_stream().synchronize
        self._memory: Bytes = cupyx.empty_pinned(region.nbytes, np.uint8)

    def _pinned(self, nbytes: int) -> Bytes:
        return self._memory[:nbytes]

    def _put(self, source: Any, nbytes: int, pinned: bool) -> Statement:
        del pinned
        return Statement(
            "put(source); synchronize()",
            put=self._array[:nbytes].set,
            source=source,
            synchronize=self._synchronize,
        )

    def _get(self, target: Any, nbytes: int) -> Statement:
        return Statement("get(out=target)", get=self._array[:nbytes].get, target=target)

    def _fetch(self, nbytes: int) -> tuple[str, Statement, Verify]:
        return (
            "ndarray.get(), a new numpy array",
            Statement("result = fetch()", fetch=self._array[:nbytes].get),
            returns(self._gpu, nbytes),
        )


class Numba(_Library):
    """Device arrays of numba.cuda, on the region's own bytes."""

    name = "numba.cuda"
    put_words = "device array.copy_to_device(array), on the default stream"
    get_words = "device array.copy_to_host(array)"

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        from numba import cuda as numba_cuda

        self._array = numba_cuda.as_cuda_array(region)
        self._memory: Bytes = numba_cuda.pinned_array(region.nbytes, np.uint8)

    def _pinned(self, nbytes: int) -> Bytes:
        return self._memory[:nbytes]

    def _put(self, source: Any, nbytes: int, pinned: bool) -> Statement:
        del pinned
        put = self._array[:nbytes].copy_to_device
        return Statement("put(source)", put=put, source=source)

    def _get(self, target: Any, nbytes: int) -> Statement:
        return Statement("get(target)", get=self._array[:nbytes].copy_to_host, target=target)

    def _fetch(self, nbytes: int) -> tuple[str, Statement, Verify]:
        return (
            "device array.copy_to_host(), a new numpy array",
            Statement("result = fetch()", fetch=self._array[:nbytes].copy_to_host),
            returns(self._gpu, nbytes),
        )


#: Rivals that may be missing, and the modules that they are.
_OPTIONAL: dict[str, Callable[[Region], Rival]] = {"torch": Torch, "cupy": Cupy, "numba": Numba}

#: What every rival is called in its ways.
NAMES = (BINDINGS, Torch.name, Cupy.name, Numba.name)


@contextmanager
def rivals(session: Session, region: Region) -> Iterator[list[Rival]]:
    """Everybody who can take part here; who cannot is noted in the session with the reason."""
    with ExitStack() as undo:
        found: list[Rival] = [CudaBindings(region, undo.enter_context(pinned(region.nbytes)))]
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


def all_writes(found: list[Rival], data: Bytes) -> list[Contender]:
    """Every rival's ways to write ``data``."""
    return [one for rival in found for one in rival.writes(data)]


def all_reads(found: list[Rival], target: Bytes) -> list[Contender]:
    """Every rival's ways to read as many bytes as ``target`` has."""
    return [one for rival in found for one in rival.reads(target)]
