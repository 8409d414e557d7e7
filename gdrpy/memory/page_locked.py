"""Page-locked host memory, which both CPU and GPU reach; that which gdrpy itself uses is lent.

Allocating it takes milliseconds. Freeing it waits for all kernels of the process, and never returns
while one of them waits for the CPU. Without CUDA, in place of a device's memory there is memory
that is registered for the copy engine: a device of None.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.common.arguments import as_size
from gdrpy.errors import OutOfMemory
from gdrpy.memory import reclaim
from gdrpy.memory.engine import register
from gdrpy.memory.view import Mapping, MappingType

if TYPE_CHECKING:
    import numpy as np

#: Bytes kept for each device. Memory of :func:`borrow` that is returned beyond this is freed.
KEPT_MAX = 256 << 20
#: A lent mapping has up to twice the bytes requested, plus this many.
_SPARE = 1 << 20

_Pool: TypeAlias = dict[int | None, list[Mapping]]

#: What is kept by device, after :func:`borrow` and after :func:`lend`. Apart: next to a large ring
#: that was dropped, memory of copies would find no room, and to free it waits for kernels.
_kept: _Pool = {}
_kept_lent: _Pool = {}
# Reentrant: a garbage collection while it is held may drop a last array, which gives memory back.
_lock = threading.RLock()


def _begin_child() -> None:
    """Renew the lock in a forked child, as the thread that held it may be gone; what is kept is the
    parent's.
    """
    global _lock
    _lock = threading.RLock()
    _kept.clear()
    _kept_lent.clear()
    _locked.clear()


os.register_at_fork(after_in_child=_begin_child)


def page_locked(nbytes: int, device: Any = 0) -> Mapping:
    """Allocate ``nbytes`` bytes of page-locked host memory that a device reaches over the bus.

    A flag in it is the quickest way for a GPU to signal the CPU, which polls its own cached memory.
    DMA copies to and from it are faster than those of ordinary memory. ``ptr`` is its address for
    GPU code on any device. ``device`` is named as for :func:`gdrpy.alloc`. Its initial contents are
    undefined.

    It is freed when the mapping is closed, or when the mapping and its last array are gone. Freeing
    waits for all running kernels: keep the memory while a kernel waits for the CPU.

    Raises ValueError, NotFound (no such device), OutOfMemory, CudaError.
    """
    size = as_size("page_locked", nbytes)
    ordinal = cuda.ordinal("page_locked", device)
    with cuda.context(ordinal), cuda.relaxed(), Undo() as undo:
        driver = cuda.driver()
        flags = driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_DEVICEMAP
        address = int(cuda.made(undo, "cuMemHostAlloc", size, flags, by="cuMemFreeHost"))
        ptr = int(cuda.call("cuMemHostGetDevicePointer", address, 0))
        free = functools.partial(_free, ordinal, address)
        mapping = Mapping(
            address, size, MappingType.CACHED, False, free, "page-locked", ptr, ordinal
        )
        undo.forget()
        return mapping


def _free(device: int, address: int) -> None:
    # At interpreter exit the kernel frees everything, and CUDA may be gone already.
    if not sys.is_finalizing():
        with cuda.context(device), cuda.relaxed():
            cuda.call("cuMemFreeHost", address)


#: Locked memory that is no longer used, with what keeps it mapped: kernels ran when it was dropped.
_locked: list[tuple[int, int, object]] = []
#: Seconds after which a GPU without work has told so.
_SETTLED = 0.01


def lock_pages(memory: Mapping, device: int, keep: object) -> Mapping:
    """A mapping of the same host memory, page-locked for a device, which keeps ``keep``.

    The memory is unlocked when the mapping is gone and the device has no work: CUDA would wait for
    running kernels. Else that is left to a later call. Raises CudaError, OutOfMemory.
    """
    _unlock_dropped()
    with cuda.context(device), cuda.relaxed(), Undo() as undo:
        driver = cuda.driver()
        flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP
        whole = memory.address, memory.nbytes, flags
        cuda.done(
            undo, "cuMemHostRegister", *whole, by="cuMemHostUnregister", also=(memory.address,)
        )
        ptr = int(cuda.call("cuMemHostGetDevicePointer", memory.address, 0))
        unlock = functools.partial(_unlock, device, memory.address, keep)
        kind = (MappingType.CACHED, False, unlock, memory.backend, ptr, device)
        mapping = Mapping(memory.address, memory.nbytes, *kind)
        undo.forget()
        return mapping


def _unlock(device: int, address: int, keep: object) -> None:
    if not sys.is_finalizing():
        _locked.append((device, address, keep))
        _unlock_dropped()


def _unlock_dropped() -> None:
    """Unlock the memory of devices that have no work now."""
    for item in list(_locked):
        device, address, _ = item
        if not _is_idle(device):
            continue
        try:
            _locked.remove(item)
        except ValueError:  # another thread has it
            continue
        with cuda.context(device), cuda.relaxed():
            cuda.call("cuMemHostUnregister", address)


def _is_idle(device: int) -> bool:
    is_idle = reclaim.queued((device,))
    until = time.monotonic() + _SETTLED
    while not is_idle():
        if time.monotonic() > until:
            return False
        time.sleep(0)
    return True


def lend(nbytes: int, device: int | None) -> Mapping:
    """``nbytes`` (1 or more) bytes of a device's memory, with undefined contents.

    The memory returns to the pool when the mapping is closed, or when it and its last array are
    gone. It is always kept, so nothing waits for a kernel. Raises OutOfMemory, CudaError.
    """
    return _lend(nbytes, device, _kept_lent, _keep_lent)


def borrow(nbytes: int, device: int | None) -> np.ndarray[Any, Any]:
    """An array of memory that is lent, but kept only up to KEPT_MAX when its last array is gone.

    Without a device, memory that would not be kept is ordinary: registering it takes longer than a
    copy. Raises OutOfMemory, CudaError.
    """
    import numpy as np

    if device is None and nbytes > KEPT_MAX:
        return np.empty(nbytes, np.uint8)
    return np.frombuffer(memoryview(_lend(nbytes, device, _kept, _give_back)), np.uint8)


def _lend(
    nbytes: int,
    device: int | None,
    pool: _Pool,
    give_back: Callable[[Mapping, int | None], None],
) -> Mapping:
    memory = _take(nbytes, device, pool) or _allocate(nbytes, device)
    back = functools.partial(give_back, memory, device)
    kind = (memory.backend, memory.ptr, device)
    return Mapping(memory.address, nbytes, MappingType.CACHED, False, back, *kind)


def free_kept() -> None:
    """Free the kept memory, which waits for all running kernels."""
    with _lock:
        pools = [*_kept.values(), *_kept_lent.values()]
        _kept.clear()
        _kept_lent.clear()
    for kept in pools:
        for memory in kept:
            memory.close()


def _allocate(nbytes: int, device: int | None) -> Mapping:
    if device is None:
        import numpy as np

        array = np.empty(nbytes, np.uint8)
        # It keeps the array.
        registration = register(array)
        address = array.ctypes.data
        return Mapping(address, nbytes, MappingType.CACHED, False, registration.close)
    try:
        return page_locked(nbytes, device)
    except OutOfMemory:
        free_kept()
        return page_locked(nbytes, device)


def _take(nbytes: int, device: int | None, pool: _Pool) -> Mapping | None:
    """The smallest kept memory that is large enough and not far too large."""
    with _lock:
        kept = pool.get(device, [])
        fitting = [one for one in kept if nbytes <= one.nbytes <= 2 * nbytes + _SPARE]
        if not fitting:
            return None
        smallest = min(fitting, key=len)
        kept.remove(smallest)
        return smallest


def _keep_lent(memory: Mapping, device: int | None) -> None:
    with _lock:
        _kept_lent.setdefault(device, []).append(memory)


def _give_back(memory: Mapping, device: int | None) -> None:
    with _lock:
        kept = _kept.setdefault(device, [])
        if memory.nbytes + sum(one.nbytes for one in kept) <= KEPT_MAX:
            kept.append(memory)
            return
    memory.close()
