"""Page-locked host memory for copies by DMA, kept for the next one who needs some.

To allocate it takes milliseconds; and CUDA frees it only when all kernels of the process have
ended, which one that waits for the CPU does not.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any

from gdrpy._core import _mapping
from gdrpy.errors import OutOfMemory
from gdrpy.memory.page_locked import page_locked
from gdrpy.memory.view import Mapping, MappingType

if TYPE_CHECKING:
    import numpy as np

#: Bytes that are kept for each device. What is given back beyond is freed.
KEPT_MAX = 256 << 20
#: Bytes by which what is lent may exceed twice what was asked for.
_SPARE = 1 << 20

_kept: dict[int, list[Mapping]] = {}
# Giving back happens wherever a last array goes, also in a garbage collection while it is held.
_lock = threading.RLock()


def _renew_lock() -> None:
    """In a forked child: the thread that held the lock may not be there."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def borrow(nbytes: int, device: int) -> np.ndarray[Any, Any]:
    """An array of ``nbytes`` (1 or more) bytes of page-locked memory, which hold anything.

    The memory is given back when the last array of it is gone. Raises OutOfMemory, CudaError.
    """
    import numpy as np

    memory = _take(nbytes, device) or _allocate(nbytes, device)
    give_back = functools.partial(_give_back, memory, device)
    lent = _mapping.Mapping(memory.address, nbytes, MappingType.CACHED, False, give_back)
    return np.frombuffer(memoryview(lent), np.uint8)


def free_kept() -> None:
    """Free what is kept, which waits for all kernels that run."""
    with _lock:
        memories = [memory for kept in _kept.values() for memory in kept]
        _kept.clear()
    for memory in memories:
        memory.close()


def _allocate(nbytes: int, device: int) -> Mapping:
    try:
        return page_locked(nbytes, device)
    except OutOfMemory:
        free_kept()
        return page_locked(nbytes, device)


def _take(nbytes: int, device: int) -> Mapping | None:
    """The smallest kept memory that suffices and is not far too large."""
    with _lock:
        kept = _kept.get(device, [])
        fitting = [one for one in kept if nbytes <= one.nbytes <= 2 * nbytes + _SPARE]
        if not fitting:
            return None
        smallest = min(fitting, key=len)
        kept.remove(smallest)
        return smallest


def _give_back(memory: Mapping, device: int) -> None:
    with _lock:
        kept = _kept.setdefault(device, [])
        if memory.nbytes + sum(one.nbytes for one in kept) <= KEPT_MAX:
            kept.append(memory)
            return
    memory.close()
