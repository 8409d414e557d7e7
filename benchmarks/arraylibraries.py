"""Array libraries as rivals: torch, cupy, numba.cuda."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from gdrpy import Region
from harness import Contender, Statement, Verify
from payload import Bytes, GpuBytes, fills, lands, returns
from words import NEW, PAGEABLE, PINNED, way


class Library(ABC):
    """A library with GPU arrays: how it copies them to and from host arrays."""

    name: str
    put_words: str
    get_words: str

    def __init__(self, region: Region) -> None:
        self._gpu = GpuBytes(region.ptr)

    def _host(self, array: Bytes) -> Any:
        """An array of bytes in the form that the library takes."""
        return array

    @abstractmethod
    def _pinned(self, nbytes: int) -> Bytes:
        """The first bytes of page-locked memory that the library made."""

    @abstractmethod
    def _put(self, source: Any, nbytes: int) -> Statement:
        """Its copy to the region's first bytes."""

    @abstractmethod
    def _get(self, target: Any, nbytes: int) -> Statement:
        """Its copy of the region's first bytes."""

    @abstractmethod
    def _fetch(self, nbytes: int) -> tuple[str, Statement, Verify]:
        """Its way to a new host object: in words, as a statement, and its proof."""

    def writes(self, data: Bytes) -> list[Contender]:
        host = self._pinned(data.nbytes)
        host[:] = data
        verify = lands(self._gpu, data)
        return [
            Contender(
                way(self.name, kind),
                f"{self.put_words}, from {kind} memory",
                self._put(self._host(source), data.nbytes),
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


class Torch(Library):
    """Tensors of torch, on the region's own bytes."""

    name = "torch"
    put_words = "tensor.copy_(CPU tensor)"
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

    def _put(self, source: Any, nbytes: int) -> Statement:
        return Statement("copy(source)", copy=self._tensor[:nbytes].copy_, source=source)

    def _get(self, target: Any, nbytes: int) -> Statement:
        return Statement("copy(source)", copy=target.copy_, source=self._tensor[:nbytes])

    def _fetch(self, nbytes: int) -> tuple[str, Statement, Verify]:
        return (
            "tensor.cpu(), a new CPU tensor",
            Statement("result = fetch()", fetch=self._tensor[:nbytes].cpu),
            returns(self._gpu, nbytes, lambda tensor: tensor.numpy()),
        )


class Cupy(Library):
    """Arrays of cupy, on the region's own bytes."""

    name = "cupy"
    put_words = "ndarray.set(array) (page-locked: then a synchronization of the stream)"
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

    def _put(self, source: Any, nbytes: int) -> Statement:
        pinned = source.ctypes.data == self._memory.ctypes.data  # which the GPU still reads then
        return Statement(
            "put(source); synchronize()" if pinned else "put(source)",
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


class Numba(Library):
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

    def _put(self, source: Any, nbytes: int) -> Statement:
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
