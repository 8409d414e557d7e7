"""A mirror: host memory that is filled at leisure and copied to a region at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gdrpy.arrays.array import Array
from gdrpy.arrays.dtypes import as_dtype
from gdrpy.errors import MissingView
from gdrpy.memory.page_locked_pool import borrow

if TYPE_CHECKING:
    import numpy as np

    from gdrpy.region import Region


@contextmanager
def mirror(region: Region, load: bool, dtype: Any, shape: Any) -> Iterator[np.ndarray[Any, Any]]:
    """What :meth:`Region.mirror` gives."""
    kind = as_dtype("Region.mirror", dtype)
    array_kind = kind.numpy("Region.mirror")
    part = Array(region, region.nbytes // kind.nbytes if shape is None else shape, kind)
    memory = host_memory(region, part.nbytes)
    if load:
        region.readinto(memory, 0)
    array = memory.view(array_kind).reshape(part.shape)
    writable = not region.readonly
    array.flags.writeable = writable
    yield array
    if writable:
        region.write(memory)


def host_memory(region: Region, nbytes: int) -> np.ndarray[Any, Any]:
    """Bytes of host memory, page-locked if the region has a GPU view; any values at first.

    It is free for the next one when the last array of it is gone. Raises OutOfMemory, CudaError.
    """
    import numpy as np

    if not nbytes or not _has_gpu_view(region):
        return np.empty(nbytes, np.uint8)
    assert region.device is not None
    return borrow(nbytes, region.device)


def _has_gpu_view(region: Region) -> bool:
    try:
        _ = region.ptr
    except MissingView:
        return False
    return True
