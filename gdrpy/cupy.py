"""cupy arrays in regions."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gdrpy import cuda
from gdrpy.arena.arena import Arena
from gdrpy.arrays.shown import Shown
from gdrpy.common.extras import brought_by
from gdrpy.errors import Closed, CudaError, Forked, OutOfMemory
from gdrpy.memory.captures import is_captured
from gdrpy.memory.memory import settle

with brought_by("gdrpy[cupy]"):
    import cupy

__all__ = ["allocator"]


def allocator(memory: Shown | Arena) -> Callable[[int], Any]:
    """A cupy allocator that carves arrays out of a region or an arena.

    For ``cupy.cuda.using_allocator`` and ``cupy.cuda.set_allocator``, directly or behind a pool:
    ``cupy.cuda.MemoryPool(allocator(region)).malloc``. Without a pool, freeing an array waits for
    the stream that was current when it was made. While that is captured into a CUDA graph, the
    block stays; the making of a later array frees it. A cupy pool frees nothing until its
    ``free_all_blocks()``. Arrays keep the region open.
    If there is no room, cupy raises its own out-of-memory error.

    Raises as :class:`Arena`; the allocator raises ValueError if another device is current.
    """
    arena = Arena.of(memory)
    device = arena.region.device

    def allocate(nbytes: int) -> Any:
        arena.require_current("allocator")
        _free_later()
        block = _Block(arena, nbytes)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(block.ptr, nbytes, block, device), 0)

    return allocate


#: cudaErrorMemoryAllocation, for which cupy has no name.
_OUT_OF_MEMORY = 2


class _Block:
    """A block of an arena, freed with the last array in it."""

    def __init__(self, arena: Arena, nbytes: int) -> None:
        self._arena = arena
        stream = cupy.cuda.get_current_stream()
        try:
            self.ptr = self._carve(max(nbytes, 1))
        except OutOfMemory as error:
            # Only this error makes a cupy pool free its unused blocks and try again.
            raise cupy.cuda.runtime.CUDARuntimeError(_OUT_OF_MEMORY) from error
        self._stream = stream

    def _carve(self, nbytes: int) -> int:
        try:
            return self._arena.allocate(nbytes)
        except OutOfMemory:
            _free_later(self._arena)
            return self._arena.allocate(nbytes)

    def __del__(self) -> None:
        if hasattr(self, "_stream") and not sys.is_finalizing():
            _free(self._arena, self.ptr, self._stream)


#: Blocks whose last array was dropped while their stream was captured into a CUDA graph.
_later: deque[tuple[Arena, int, Any]] = deque()


def _free(arena: Arena, ptr: int, stream: Any) -> None:
    try:
        with suppress(Forked):  # the memory is the parent's
            arena.free(ptr, stream)
    except BufferError:
        _later.append((arena, ptr, stream))


def _free_later(waiting: Arena | None = None) -> None:
    """Free the blocks whose stream is idle, and wait for the streams of those of one arena.

    Others must not be waited for: any close() of a region calls this.
    """
    for _ in range(len(_later)):
        with suppress(IndexError, Closed):  # another thread has it; its arena was retired
            arena, ptr, stream = _later.popleft()
            if arena is waiting or arena._forked():
                _free(arena, ptr, stream)
            elif _is_idle(arena.device, stream):
                arena.free(ptr)
            else:
                _later.append((arena, ptr, stream))


def _is_idle(device: int, stream: Any) -> bool:
    """Whether all work of a stream is done, or its context has ended by an error."""
    handle = cuda.stream_handle(stream)
    with cuda.context(device), cuda.relaxed():
        if is_captured(handle):
            return False
        try:
            cuda.call("cuStreamQuery", handle)
        except CudaError as error:
            return error.name not in ("CUDA_ERROR_NOT_READY", "CUDA_ERROR_NOT_PERMITTED")
    return True


settle.append(_free_later)
