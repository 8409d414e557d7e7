"""RAPIDS' memory in regions."""

from __future__ import annotations

from typing import Any

import rmm

from gdrpy.arena import Arena
from gdrpy.arrays.viewed import Viewed

__all__ = ["resource"]


def resource(memory: Viewed | Arena) -> Any:
    """A memory resource of rmm's that carves buffers out of a region, or of an arena of one.

    For ``rmm.mr.set_current_device_resource``, as it is or under rmm's own pools. Freeing a buffer
    waits for its stream. Where there is no room MemoryError is raised. Every allocation calls
    Python, which takes microseconds: use a pool above it for many small ones.

    Raises as :class:`Arena`; allocating raises ValueError where another device is current.
    """
    arena = Arena.of(memory)

    def allocate(nbytes: int, _stream: Any) -> int:
        arena.require_current("resource")
        return arena.allocate(max(nbytes, 1))

    def free(ptr: int, _nbytes: int, stream: Any) -> None:
        stream.synchronize()
        arena.free(ptr)

    return rmm.mr.CallbackMemoryResource(allocate, free)
