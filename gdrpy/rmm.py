"""rmm (RAPIDS Memory Manager) buffers in regions."""

from __future__ import annotations

from typing import Any

from gdrpy.arena.arena import Arena
from gdrpy.arrays.shown import Shown
from gdrpy.common.extras import brought_by

with brought_by("rmm-cu13"):
    import rmm

__all__ = ["resource"]


def resource(memory: Shown | Arena) -> Any:
    """An rmm memory resource that carves buffers out of a region or an arena.

    For ``rmm.mr.set_current_device_resource``, directly or under an rmm pool. Freeing a buffer
    waits for its stream. Allocating raises MemoryError if there is no room. Every allocation calls
    Python, which takes microseconds: put a pool above it for many small ones.

    Raises as :class:`Arena`; allocating raises ValueError if another device is current.
    """
    arena = Arena.of(memory)

    def allocate(nbytes: int, _stream: Any) -> int:
        arena.require_current("resource")
        return arena.allocate(max(nbytes, 1))

    def free(ptr: int, _nbytes: int, stream: Any) -> None:
        stream.synchronize()
        arena.free(ptr)

    return rmm.mr.CallbackMemoryResource(allocate, free)
