"""Elements of any library's arrays, for copies into a region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gdrpy.arrays.interop import DeviceArray, host_array, packed_array
from gdrpy.common.dtypes import DType

if TYPE_CHECKING:
    import numpy as np


class Elements(NamedTuple):
    """An array's elements: packed in GPU memory, or a numpy array of any strides.

    For a numpy array ``dtype`` is numpy's. Another library's host array is shown as raw bytes.
    """

    dtype: DType | np.dtype[Any]
    shape: tuple[int, ...]
    data: DeviceArray | np.ndarray[Any, Any]


def elements_of(call: str, array: Any) -> Elements:
    """The elements of any library's array, or of any object that numpy can make an array of.

    Waits for the work that the library has queued on the array. Raises TypeError for unknown
    element types, ValueError for GPU arrays that are not packed in C order.
    """
    import numpy as np

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
    """The bytes of an array in C order, without a copy if they already lie in C order."""
    import numpy as np

    return np.asarray(array, order="C").reshape(-1).view(np.uint8)


class _Shown:
    """An array for numpy, with elements of raw bytes."""

    def __init__(self, array: DeviceArray) -> None:
        self._owner = array.owner
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": f"|V{array.dtype.nbytes}",
            "data": (array.address, True),
            "strides": array.strides,
        }
