"""rmm (RAPIDS Memory Manager) buffers in regions."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import suppress
from typing import Any

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.arena.arena import Arena
from gdrpy.arrays.shown import Shown
from gdrpy.common.extras import brought_by
from gdrpy.errors import Closed, Forked, OutOfMemory
from gdrpy.memory import reclaim
from gdrpy.memory.captures import is_captured

with brought_by("rmm-cu13"):
    import rmm

__all__ = ["resource"]


def resource(memory: Shown | Arena) -> Any:
    """An rmm memory resource that carves buffers out of a region or an arena.

    For ``rmm.mr.set_current_device_resource``, directly or under an rmm pool. Freeing a buffer
    waits for its stream. While that is captured into a CUDA graph, the block stays; a later
    allocation on a stream that is not captured, or the resource's end, has it freed once the GPU is
    done with the work queued by then. The graph does not keep it. Allocating raises MemoryError if
    there is no room. Every allocation calls Python, which takes microseconds: put a pool above it
    for many small ones.

    Raises as :class:`Arena`; allocating raises ValueError if another device is current.
    """
    blocks = _Blocks(Arena.of(memory))
    return rmm.mr.CallbackMemoryResource(blocks.allocate, blocks.free)


class _Blocks:
    """The callbacks of a resource."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        #: Blocks that were freed while their stream was captured. rmm does not say how long a
        #: stream lives, so that it cannot be asked again.
        self._later: deque[int] = deque()
        #: Those of them that are freed when the GPU is done.
        self._given: set[int] = set()

    def __del__(self) -> None:
        if self._later and not sys.is_finalizing() and not self._arena._forked():
            self._give_back()

    def allocate(self, nbytes: int, stream: Any) -> int:
        self._arena.require_current("resource")
        size, device = max(nbytes, 1), self._arena.device
        free = bool(self._later or self._given) and not self._is_captured(stream)
        if free and self._later:
            self._give_back()
        elif free:
            reclaim.reclaim(device)
        try:
            return self._arena.allocate(size)
        except OutOfMemory:
            if not free or not reclaim.reclaim(device, wait=True):
                raise
        return self._arena.allocate(size)

    def free(self, ptr: int, _nbytes: int, stream: Any) -> None:
        # rmm ignores an error, which Python then raises in whatever it does next.
        try:
            with suppress(Forked):  # the memory is the parent's
                self._arena.free(ptr, stream)
        except BufferError:
            self._later.append(ptr)

    def _is_captured(self, stream: Any) -> bool:
        with cuda.context(self._arena.device):
            return is_captured(cuda.stream_handle(stream))

    def _give_back(self) -> None:
        """Have the blocks freed when the GPU has done all work queued by now."""
        devices = (self._arena.device,)
        undo = Undo().pop_all(reclaim.left(devices))
        while self._later:
            with suppress(IndexError):  # another thread has it
                block = self._later.popleft()
                self._given.add(block)
                undo.callback(_free, self._arena, self._given, block)
        reclaim.give_back(devices, undo, None)


def _free(arena: Arena, given: set[int], block: int) -> None:
    given.discard(block)  # first: another thread may have the same address at once
    with suppress(Closed):  # it was retired
        arena.free(block)
