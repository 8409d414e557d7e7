"""Arrays of any library, to be copied into a region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gdrpy.arrays.dlpack import Hold
from gdrpy.arrays.interop import DeviceArray, host_array, packed_array
from gdrpy.copies import dma
from gdrpy.memory.page_locked_pool import borrow

if TYPE_CHECKING:
    from gdrpy.arrays.dtypes import DType
    from gdrpy.region import Region

#: Bytes that go through the host at once where they cannot go from GPU to GPU.
_CHUNK = 16 << 20


class Elements(NamedTuple):
    """An array's elements: packed in GPU memory, or a numpy array of any strides.

    Of a numpy array ``dtype`` is numpy's; another library's bytes are in one without a type.
    """

    dtype: DType | np.dtype[Any]
    shape: tuple[int, ...]
    data: DeviceArray | np.ndarray[Any, Any]

    def copy_to(self, call: str, region: Region, offset: int) -> None:
        """Copy them, packed in C order. It is done on return. Raises ReadOnly, Closed."""
        if isinstance(self.data, DeviceArray):
            _copy_from_gpu(call, self.data, region, offset)
        else:
            region.write(as_bytes(np.asarray(self.data, order="C")), offset)


def elements_of(call: str, array: Any) -> Elements:
    """What an array of any library, or what numpy makes one of, consists of.

    What its library has queued on it is waited for. Raises TypeError for element types without a
    name here, ValueError for GPU arrays that are not packed in C order.
    """
    if not isinstance(array, np.ndarray | np.generic):
        on_gpu = packed_array(call, array)
        if on_gpu is not None:
            return Elements(on_gpu.dtype, on_gpu.shape, on_gpu)
        on_host = host_array(call, array)
        if on_host is not None:
            return Elements(on_host.dtype, on_host.shape, np.asarray(_Shown(on_host)))
    plain = np.asarray(array)
    return Elements(plain.dtype, plain.shape, plain)


def as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8)


class _Shown:
    """Memory as numpy takes it, whatever its elements mean."""

    def __init__(self, array: DeviceArray) -> None:
        self._owner = array.owner
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": f"|V{array.dtype.nbytes}",
            "data": (array.address, True),
            "strides": array.strides,
        }


def _copy_from_gpu(call: str, source: DeviceArray, region: Region, offset: int) -> None:
    region._check_gpu_may_write(call)
    if not source.nbytes:
        return
    if region._ptr is not None and source.device in region._allocation.devices:
        hold = Hold(region._allocation)
        dma.copy(source.device, region.ptr + offset, source.address, source.nbytes)
        del hold
        return
    memory = borrow(min(_CHUNK, source.nbytes), source.device)
    for start in range(0, source.nbytes, _CHUNK):
        piece = memory[: source.nbytes - start]
        dma.copy(source.device, piece.ctypes.data, source.address + start, piece.nbytes)
        region.write(piece, offset + start)
