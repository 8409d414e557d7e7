"""Which way a copy takes: CPU loads and stores through the mapping, or the GPU's DMA engine.

Both ways are done when the call returns, and neither waits for kernels.
"""

from __future__ import annotations

from gdrpy._arguments import as_int, as_range

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gdrpy.allocation import Allocation
    from gdrpy.backends.memfd import Memfd
    from gdrpy.mapping import Mapping

#: Reads of up to this size in bytes are made by CPU loads: they are bound by one bus round trip for
#: each line of 64 bytes. On an H200 with PCIe Gen5 the mapping won at 8 KiB and DMA at 16 KiB.
#: Writes through the mapping beat DMA from pageable memory at every size measured, up to 64 MiB.
#: See benchmarks/results.
MAPPING_READ_MAX = 12 * 1024
#: Bytes that a fill stores at a time.
_FILL_CHUNK = 256 * 1024


class Views:
    """The ways to the first ``nbytes`` bytes of an allocation: a CPU mapping, its GPU address."""

    __slots__ = ("allocation", "cpu", "nbytes")

    def __init__(self, nbytes: int, cpu: Mapping | None, allocation: Allocation | Memfd) -> None:
        self.nbytes = nbytes
        self.cpu = cpu
        self.allocation = allocation

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

    def fill(self, value: Any, offset: Any, nbytes: Any) -> None:
        """Set ``nbytes`` bytes (None: all the rest) from byte ``offset`` on to a byte's value."""
        call = "Region.fill"
        byte = as_int(call, "value", value)
        if not 0 <= byte <= 255:
            raise ValueError(f"{call}: value must be a byte's, 0 to 255, and is {byte}")
        start, size = as_range(call, offset, nbytes, self.nbytes)
        if self.cpu is None:
            from gdrpy import dma

            dma.fill(self.allocation, byte, start, size)
            return
        chunk = memoryview(bytes((byte,)) * min(size, _FILL_CHUNK))
        for done in range(0, size or 1, _FILL_CHUNK):  # once for no bytes too: it may be read-only
            self.cpu.write(chunk[: size - done], start + done)

    def _by_loads(self, nbytes: int) -> bool:
        return self.allocation.ptr is None or nbytes <= MAPPING_READ_MAX

    def dma_write(self, data: Any, offset: Any) -> None:
        """As :meth:`write`, by DMA whatever the size."""
        from gdrpy import dma

        dma.write(self.allocation, self.nbytes, data, offset)

    def dma_readinto(self, buffer: Any, offset: Any) -> int:
        """As :meth:`readinto`, by DMA whatever the size."""
        from gdrpy import dma

        return dma.readinto(self.allocation, self.nbytes, buffer, offset)
