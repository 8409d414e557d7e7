"""Other libraries' GPU arrays: where their memory lies."""

from __future__ import annotations

import math
from typing import Any


def device_range(obj: Any) -> tuple[int, int]:
    """The device pointer and size in bytes of an array with ``__cuda_array_interface__``.

    Raises TypeError for anything else, ValueError for an array that is not contiguous.
    """
    try:
        interface = obj.__cuda_array_interface__
    except AttributeError:
        raise TypeError(
            f"{type(obj).__name__} is no device pointer and has no __cuda_array_interface__: pass "
            f"an int address with nbytes, or a contiguous CUDA array"
        ) from None
    shape = interface["shape"]
    itemsize = int(interface["typestr"][2:])
    strides = interface.get("strides")
    if strides is not None and tuple(strides) != _packed(shape, itemsize):
        raise ValueError("the CUDA array is not contiguous: make a contiguous copy first")
    return int(interface["data"][0]), math.prod(shape) * itemsize


def _packed(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides, in bytes, of a C-contiguous array."""
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
