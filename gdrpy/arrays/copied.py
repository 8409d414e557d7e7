"""Copied, the base of regions and pins that copies between them and other memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gdrpy.arrays.elements import Elements, as_bytes, place_of, readable, refuse_others
from gdrpy.arrays.interop import DeviceArray, packed_array
from gdrpy.arrays.viewed import Viewed
from gdrpy.common.arguments import as_int, as_range
from gdrpy.common.resource import Hold
from gdrpy.copies import dma
from gdrpy.copies.tuning import limits
from gdrpy.errors import (
    BackendUnavailable,
    DriverError,
    Error,
    InvalidHandle,
    OutOfMemory,
    ReadOnly,
)
from gdrpy.memory.page_locked import borrow
from gdrpy.memory.queue import CopyQueue
from gdrpy.memory.view import MappingType

if TYPE_CHECKING:
    import numpy as np

#: The errors of an engine that cannot be made, or does not reach the memory.
_UNREACHED = (BackendUnavailable, OutOfMemory, DriverError)
#: From this size in bytes on, a fill by the GPU is quicker, despite its launch cost.
_DMA_FILL_MIN = 64 * 1024
#: From this size on, an engine fills quicker than the CPU: at 102 GB/s after 5 us, while stores
#: reach 20 to 33 GB/s.
_ENGINE_FILL_MIN = 256 * 1024
#: From this size on, a fill makes the engine: 64 MiB of stores take 2 to 3.3 ms, and the 6 ms that
#: an engine takes to make serve later copies too.
_ENGINE_FILL_FIRST = 64 << 20
#: Bytes that a fill through the mapping stores at a time.
_FILL_CHUNK = 256 * 1024
#: From this size on, a copy on a GPU by the engine is quicker, usually even if it must be made.
_ENGINE_COPY_MIN = 256 * 1024
#: Bytes copied through the host at a time, between memory that no engine copies.
_COPY_CHUNK = 16 << 20


class Copied(Viewed):
    """Copies by the faster view: complete when their call returns, and waiting for no kernel."""

    def _prepare(self, call: str, writing: bool) -> None:
        """Set up the C core's copies, or raise if a copy is not possible."""
        with self._lock:
            self._check(call)
            if writing:
                self._check_writable(call)
            engine = None
            place: int | str = self.location
            if self._ptr is not None:
                assert self.device is not None
                place = self.device
                engine = dma.engine(self.device)
            self._arm(self._cpu, engine, self._ptr or 0, self.nbytes, writing, tuple(limits(place)))

    def _prepare_engine(self, call: str) -> None:
        """Set up copies by the engine. Raises BackendUnavailable."""
        with self._lock:
            self._check(call)
            self._arm_engine(self._memory.engine(call))

    def _try_engine(self, call: str) -> bool:
        """Set up copies by the engine if it can be used for this memory.

        Returns False if it never can.
        """
        try:
            self._prepare_engine(call)
        except BackendUnavailable:
            return False
        except Error:  # there may be room for it later
            return True
        return True

    def queue(self) -> CopyQueue:
        """A new queue of copies and waits, which the GPU's copy engine does without the CPU.

        It serves all regions and pins on this GPU.

        Raises BackendUnavailable, with the reason, if the engine cannot be used.
        """
        self._check(f"{type(self).__name__}.queue")
        return CopyQueue(self)

    def _check_gpu_may_write(self, call: str) -> None:
        """Raise ReadOnly if nothing may be written.

        Earlier stores of the CPU arrive before what the GPU writes from now on.
        """
        self._check_writable(call)
        self._flush()

    def fill(
        self, value: int, offset: int = 0, nbytes: int | None = None, via: str | None = None
    ) -> None:
        """Set bytes to one value, by CPU stores, or if there are many by the GPU.

        Args:
            value: The value of each byte, 0 to 255.
            offset: The first byte.
            nbytes: The number of bytes; None is all the rest.
            via: 'engine' forces the copy engine without CUDA; None takes one of the other ways.

        Raises ValueError, ReadOnly, Closed; for ``via="engine"`` BackendUnavailable.
        """
        call = f"{type(self).__name__}.fill"
        if via not in (None, "engine"):
            raise ValueError(f"{call}: via must be 'engine' or None, not {via!r}")
        byte = as_int(call, "value", value)
        if not 0 <= byte <= 255:
            raise ValueError(f"{call}: value must be a byte, 0 to 255, not {byte}")
        start, size = as_range(call, offset, nbytes, self.nbytes)
        self._check_gpu_may_write(call)
        has_view = self._ptr is not None or self._has_cpu_view
        least = _ENGINE_FILL_MIN if self._reached else _ENGINE_FILL_FIRST
        if via is not None or not has_view or (self._ptr is None and size >= least):
            try:
                self._fill_by_engine(call, byte, start, size)
                return
            except _UNREACHED:
                if via is not None or not has_view:
                    raise
        if self._ptr is not None and (self._cpu is None or size >= _DMA_FILL_MIN):
            assert self.device is not None
            with Hold(self._memory):
                if size:
                    dma.fill(self.device, self._ptr + start, byte, size)
            return
        chunk = memoryview(bytes((byte,)) * min(size, _FILL_CHUNK))
        for done in range(0, size, _FILL_CHUNK):
            self.cpu.write(chunk[: size - done], start + done)

    def _put(self, call: str, elements: Elements, offset: int) -> None:
        """Copy an array's elements to ``offset``, packed in C order. Raises ReadOnly, Closed."""
        source = elements.data
        if isinstance(source, DeviceArray):
            self._copy_on_gpu(call, source, offset, True)
        elif elements.place is None or not self._copy_from(call, *elements.place, offset):
            self.write(as_bytes(source), offset)

    def _copy_on_gpu(self, call: str, array: DeviceArray, offset: int, to_write: bool) -> None:
        """Copy a GPU array to or from ``offset``. Raises ReadOnly, Closed, ValueError."""
        if to_write:
            self._check_gpu_may_write(call)
        else:
            self._check(call)
            if array.readonly:
                raise ReadOnly(f"{call}: the library that made the array made it read-only")
            self._flush()
        if not array.nbytes:
            return
        if self._ptr is not None and abs(self._ptr + offset - array.address) < array.nbytes:
            raise ValueError(
                f"{call}: {'data' if to_write else 'buffer'} lies in the "
                f"{type(self).__name__.lower()} itself and overlaps the {array.nbytes} bytes at "
                f"offset {offset}: copy through other memory, such as another array"
            )
        if self._ptr is not None and array.device in self._memory.devices:
            with Hold(self._memory):
                sides = _sides(self._ptr + offset, array.address, to_write)
                dma.copy(array.device, *sides, array.nbytes)
            return
        staging = borrow(min(_COPY_CHUNK, array.nbytes), array.device)
        for start, piece in _pieces(staging, array.nbytes):
            if not to_write:
                self.readinto(piece, offset + start)
            sides = _sides(piece.ctypes.data, array.address + start, to_write)
            dma.copy(array.device, *sides, piece.nbytes)
            if to_write:
                self.write(piece, offset + start)

    def _copy_from(self, call: str, other: Viewed, start: int, nbytes: int, offset: int) -> bool:
        """Copy bytes of another region's GPU memory to ``offset``; returns whether it did.

        The engine copies on the GPU; else the bytes go through host memory, since loads from a
        mapping of GPU memory by the way are slow. Memory that the CPU caches, and bytes of this
        region, are left to :meth:`write`.
        """
        cpu = other._cpu
        if not nbytes or other is self:
            return False
        if cpu is not None and cpu.mapping_type is MappingType.CACHED:
            if self._cpu is None:
                self.write(memoryview(cpu)[start : start + nbytes], offset)
            return self._cpu is None
        self._check_gpu_may_write(call)
        other._flush()
        if nbytes >= _ENGINE_COPY_MIN:
            # Refused also if the memory lies on two GPUs.
            with contextlib.suppress(*_UNREACHED, InvalidHandle):
                self._copy_by_engine(call, other, offset, start, nbytes, True)
                return True
        import numpy as np

        staging = np.empty(min(_COPY_CHUNK, nbytes), np.uint8)
        for done, piece in _pieces(staging, nbytes):
            other.readinto(piece, start + done)
            self.write(piece, offset + done)
        return True

    def _copy_array(
        self, call: str, array: Any, offset: int, via: str | None, to_write: bool
    ) -> int | None:
        """Copy a GPU array, which the C core cannot, to or from ``offset``; returns its bytes.

        None for any other object, which the C core then copies or refuses.
        """
        place = place_of(array)
        if place is not None:
            other, start, nbytes = place
            if not to_write and array.readonly and not other.readonly:
                return None  # an array that its library made read-only
            if via == "engine":
                self._copy_by_engine(call, other, offset, start, nbytes, to_write)
                return nbytes
            if other is self:
                return None  # the bytes may overlap
            if other._ptr is None:
                as_range(call, offset, nbytes, self.nbytes)
                copied = (
                    self._copy_from(call, other, start, nbytes, offset)
                    if to_write
                    else other._copy_from(call, self, offset, nbytes, start)
                )
                return nbytes if copied else None
        refuse_others(call, array)
        found = packed_array(call, readable(array) if to_write else array)
        if found is None:
            return None
        if via in ("mapping", "engine"):
            raise ValueError(
                f"{call}: via={via!r} copies host memory, and this {type(array).__name__} is on "
                f"a GPU, which copies it: leave via out"
            )
        start, size = as_range(call, offset, found.nbytes, self.nbytes)
        self._copy_on_gpu(call, found, start, to_write)
        return size

    def _host_memory(self, nbytes: int, reused: bool) -> np.ndarray[Any, Any]:
        """Host memory with undefined contents: page-locked if there is a GPU view.

        Otherwise, memory that is often reused is registered for the copy engine. Both are kept for
        the next call when their last array is gone. Raises OutOfMemory, CudaError.
        """
        import numpy as np

        if not nbytes or not (self._has_gpu_view or reused):
            return np.empty(nbytes, np.uint8)
        return borrow(nbytes, self.device if self._has_gpu_view else None)


def _pieces(
    staging: np.ndarray[Any, Any], nbytes: int
) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Cut ``nbytes`` bytes into pieces of staging: the first byte of each, and the staging."""
    for start in range(0, nbytes, staging.nbytes):
        yield start, staging[: nbytes - start]


def _sides(here: int, there: int, to_write: bool) -> tuple[int, int]:
    """The target and the source of a copy."""
    return (here, there) if to_write else (there, here)
