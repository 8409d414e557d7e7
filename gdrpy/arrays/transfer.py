"""Copies between host memory and GPU memory that this process has views of.

Both ways, through the mapping and by DMA, are done when a call returns, and neither waits for
kernels. The copying itself is the C core's: _core/python/transfer_ways.c.
"""

from __future__ import annotations

from abc import abstractmethod

from gdrpy._core._mapping import Transfers
from gdrpy.arrays.mappable import Mappable
from gdrpy.common.arguments import as_int, as_range
from gdrpy.errors import ReadOnly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdrpy.memory.allocation import Allocation
    from gdrpy.memory.file import Memfd

#: From this size in bytes on a fill is quicker by the GPU, which has to be asked.
_DMA_FILL_MIN = 64 * 1024
#: Bytes that a fill through the mapping stores at a time.
_FILL_CHUNK = 256 * 1024


class Transferable(Mappable, Transfers):
    """Memory with a CPU mapping, a GPU address, or both, and the copies to and from it."""

    @property
    @abstractmethod
    def _allocation(self) -> Allocation | Memfd:
        """What keeps the memory."""

    def _check_writable(self, call: str) -> None:
        """Raise where nothing may be written."""
        self._check(call)
        if self.readonly:
            raise ReadOnly(f"{call}: the region is read-only; open it with readonly=False")

    def _prepare(self, call: str, writing: bool) -> None:
        """Arm the copies, or raise what keeps one from being made."""
        with self._lock:
            self._check(call)
            from gdrpy.copies.tuning import limits

            if writing:
                self._check_writable(call)
            dma = None
            if self._ptr is not None:
                from gdrpy.copies.dma import engine

                assert self.device is not None
                dma = engine(self.device)
            found = limits(None if dma is None else self.device)
            self._arm(self._cpu, dma, self._ptr or 0, self.nbytes, writing, found)

    def fill(self, value: int, offset: int = 0, nbytes: int | None = None) -> None:
        """Set ``nbytes`` bytes (None: all the rest) from ``offset`` on to ``value``, 0 to 255.

        By CPU stores, or from 64 KiB on by the GPU. Raises ValueError, ReadOnly, Closed.
        """
        call = "Region.fill"
        byte = as_int(call, "value", value)
        if not 0 <= byte <= 255:
            raise ValueError(f"{call}: value must be a byte's, 0 to 255, and is {byte}")
        start, size = as_range(call, offset, nbytes, self.nbytes)
        self._check_gpu_may_write(call)
        if self._ptr is not None and (self._cpu is None or size >= _DMA_FILL_MIN):
            self._fill_by_gpu(byte, start, size)
            return
        assert self._cpu is not None
        chunk = memoryview(bytes((byte,)) * min(size, _FILL_CHUNK))
        for done in range(0, size, _FILL_CHUNK):
            self._cpu.write(chunk[: size - done], start + done)

    def _check_gpu_may_write(self, call: str) -> None:
        """Raise where nothing may be written.

        No store made before arrives after what the GPU writes from now on.
        """
        self._check_writable(call)
        if self._cpu is not None:
            self._cpu.flush()  # also those of a batch()

    def _fill_by_gpu(self, byte: int, start: int, size: int) -> None:
        from gdrpy.copies import dma

        assert self._ptr is not None
        assert self.device is not None
        allocation = self._allocation
        allocation.hold()
        try:
            if size:
                dma.fill(self.device, self._ptr + start, byte, size)
        finally:
            allocation.let_go()

    def _release(self) -> None:
        self._refuse_if_busy()
        self._disarm()
        super()._release()
