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
from gdrpy.errors import ReadOnly
from gdrpy.mapping import Mapping

#: The mapping is faster up to these sizes in bytes on an H200 with PCIe Gen5. Reading through a
#: mapping is bound by one bus round trip a line, so it loses early.
MAPPING_WRITE_MAX = 256 * 1024
MAPPING_READ_MAX = 4 * 1024


@dataclass(frozen=True)
class Views:
    """The ways to ``nbytes`` bytes of GPU memory: a CPU mapping, a GPU address, or both."""

    nbytes: int
    cpu: Mapping | None
    ptr: int | None
    device: int | None

    def _uses_mapping(self, call: str, offset: int, nbytes: int, limit: int) -> bool:
        """Whether the mapping is the way for this size; checks the range if it is not."""
        if self.cpu is not None and (self.ptr is None or nbytes <= limit):
            return True
        check_range(call, offset, nbytes, self.nbytes)
        return False

    def write(self, data: Any, offset: int) -> None:
        """Copy a contiguous buffer to byte ``offset``."""
        nbytes = memoryview(data).nbytes
        if self._uses_mapping("write", offset, nbytes, MAPPING_WRITE_MAX):
            assert self.cpu is not None
            self.cpu.write(data, offset)
            return
        if self.cpu is not None and self.cpu.readonly:
            raise ReadOnly("write: the CPU view is read-only; open the region with readonly=False")
        self.dma_write(data, offset)

    def readinto(self, buffer: Any, offset: int) -> int:
        """Fill a writable contiguous buffer from byte ``offset``; returns its size in bytes."""
        nbytes = memoryview(buffer).nbytes
        if self._uses_mapping("readinto", offset, nbytes, MAPPING_READ_MAX):
            assert self.cpu is not None
            return self.cpu.readinto(buffer, offset)
        self.dma_readinto(buffer, offset)
        return nbytes

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
