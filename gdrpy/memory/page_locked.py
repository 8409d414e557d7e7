"""Page-locked host memory, which both CPU and GPU reach."""

from __future__ import annotations

import functools
import sys
from typing import Any

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.common.arguments import as_size
from gdrpy.memory.view import Mapping, MappingType


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
    with cuda.context(ordinal), Undo() as undo:
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
        with cuda.context(device):
            cuda.call("cuMemFreeHost", address)
