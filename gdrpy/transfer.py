"""Which way a copy takes: CPU loads and stores through the mapping, or the GPU's DMA engine.

Both ways are done when the call returns, and neither waits for kernels: DMA runs in a stream of its
own that does not synchronize with the legacy default stream.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from gdrpy import cuda
from gdrpy._mappable import check_range
from gdrpy.mapping import Mapping

#: Reads through the mapping are faster up to this size in bytes on an H200 with PCIe Gen5: they are
#: bound by one bus round trip for each line of 64 bytes. Writes through the mapping are faster than
#: DMA from pageable memory at every size measured, up to 64 MiB. See benchmarks/results.
MAPPING_READ_MAX = 12 * 1024


@dataclass(frozen=True)
class Views:
    """The ways to ``nbytes`` bytes of GPU memory: a CPU mapping, a GPU address, or both."""

    nbytes: int
    cpu: Mapping | None
    ptr: int | None
    device: int | None

    def write(self, data: Any, offset: int) -> None:
        """Copy a contiguous buffer to byte ``offset``."""
        if self.cpu is not None:
            self.cpu.write(data, offset)
            return
        check_range("write", offset, memoryview(data).nbytes, self.nbytes)
        self.dma_write(data, offset)

    def read(self, nbytes: int, offset: int) -> bytes:
        """The ``nbytes`` bytes at ``offset``."""
        if self._loads(nbytes):
            assert self.cpu is not None
            return self.cpu.read(nbytes, offset)
        buffer = bytearray(nbytes)
        self.readinto(buffer, offset)
        return bytes(buffer)

    def readinto(self, buffer: Any, offset: int) -> int:
        """Fill a writable contiguous buffer from byte ``offset``; returns its size in bytes."""
        nbytes = memoryview(buffer).nbytes
        if self._loads(nbytes):
            assert self.cpu is not None
            return self.cpu.readinto(buffer, offset)
        check_range("readinto", offset, nbytes, self.nbytes)
        self.dma_readinto(buffer, offset)
        return nbytes

    def _loads(self, nbytes: int) -> bool:
        """Whether a read of this size is made by CPU loads."""
        return self.cpu is not None and (self.ptr is None or nbytes <= MAPPING_READ_MAX)

    def dma_write(self, data: Any, offset: int) -> None:
        """As :meth:`write`, by DMA whatever the size; the range must lie inside."""
        nbytes = memoryview(data).nbytes
        self._dma("cuMemcpyHtoDAsync", self._address(offset), data, nbytes)

    def dma_readinto(self, buffer: Any, offset: int) -> None:
        """As :meth:`readinto`, by DMA whatever the size; the range must lie inside."""
        nbytes = memoryview(buffer).nbytes
        self._dma("cuMemcpyDtoHAsync", buffer, self._address(offset), nbytes)

    def _address(self, offset: int) -> int:
        assert self.ptr is not None
        return self.ptr + offset

    def _dma(self, call: str, *args: Any) -> None:
        assert self.device is not None
        with cuda.context(self.device):
            stream = _stream(self.device)
            cuda.call(call, *args, stream)
            cuda.call("cuStreamSynchronize", stream)


@functools.cache
def _stream(device: int) -> Any:
    """The stream of all DMA on a device; the caller has made its primary context current."""
    del device
    flags = cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING
    return cuda.call("cuStreamCreate", flags)
