"""Which way a copy takes: CPU loads and stores through the mapping, or the GPU's DMA engine.

Both ways are done when the call returns, and neither waits for kernels: DMA runs in a stream of its
own that does not synchronize with the legacy default stream.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gdrpy import cuda
from gdrpy._arguments import as_range
from gdrpy._core import _ffi
from gdrpy.mapping import Mapping
from gdrpy.vmm import Allocation

ffi = _ffi.ffi

#: Reads of up to this size in bytes are made by CPU loads: they are bound by one bus round trip for
#: each line of 64 bytes. On an H200 with PCIe Gen5 the mapping won at 8 KiB and DMA at 16 KiB.
#: Writes through the mapping beat DMA from pageable memory at every size measured, up to 64 MiB.
#: See benchmarks/results.
MAPPING_READ_MAX = 12 * 1024


@dataclass(frozen=True)
class Views:
    """The ways to the first ``nbytes`` bytes of an allocation: a CPU mapping, its GPU address."""

    nbytes: int
    cpu: Mapping | None
    allocation: Allocation

    def write(self, data: Any, offset: Any) -> None:
        """Copy a contiguous buffer to byte ``offset``."""
        if self.cpu is not None:
            self.cpu.write(data, offset)
        else:
            self.dma_write(data, offset)

    def read(self, nbytes: int, offset: int) -> bytes:
        """The ``nbytes`` bytes at ``offset``."""
        if self.cpu is not None and self._by_loads(nbytes):
            return self.cpu.read(nbytes, offset)
        buffer = bytearray(nbytes)
        self.dma_readinto(buffer, offset)
        return bytes(buffer)

    def readinto(self, buffer: Any, offset: Any) -> int:
        """Fill a writable contiguous buffer from byte ``offset``; returns its size in bytes."""
        if self.cpu is not None and self._by_loads(memoryview(buffer).nbytes):
            return self.cpu.readinto(buffer, offset)
        return self.dma_readinto(buffer, offset)

    def _by_loads(self, nbytes: int) -> bool:
        return self.allocation.ptr is None or nbytes <= MAPPING_READ_MAX

    def dma_write(self, data: Any, offset: Any) -> None:
        """As :meth:`write`, by DMA whatever the size."""
        call, source = "Region.write", ffi.from_buffer(data)
        host, nbytes = _address(source), len(source)
        self._dma(call, offset, nbytes, lambda ptr: ("cuMemcpyHtoDAsync", ptr, host, nbytes))

    def dma_readinto(self, buffer: Any, offset: Any) -> int:
        """As :meth:`readinto`, by DMA whatever the size."""
        call, target = "Region.readinto", ffi.from_buffer(buffer, require_writable=True)
        host, nbytes = _address(target), len(target)
        self._dma(call, offset, nbytes, lambda ptr: ("cuMemcpyDtoHAsync", host, ptr, nbytes))
        return nbytes

    def _dma(
        self, call: str, offset: Any, nbytes: int, copy: Callable[[int], tuple[Any, ...]]
    ) -> None:
        start, _ = as_range(call, offset, nbytes, self.nbytes)
        ptr, device = self.allocation.ptr, self.allocation.device
        assert ptr is not None
        assert device is not None
        if not nbytes:
            return
        with self.allocation.held(), cuda.context(device):
            stream = _stream(device)
            cuda.call(*copy(ptr + start), stream)
            cuda.call("cuStreamSynchronize", stream)


def _address(buffer: Any) -> int:
    return int(ffi.cast("uintptr_t", buffer))


@functools.cache
def _stream(device: int) -> Any:
    """The stream of all DMA on a device; the caller has made its primary context current."""
    del device
    flags = cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING
    return cuda.call("cuStreamCreate", flags)
