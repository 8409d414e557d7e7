"""Elements of any library's arrays, for copies into a region."""

from __future__ import annotations

import os
import sys
from collections import abc
from typing import TYPE_CHECKING, Any

from gdrpy._core._mapping import Buffer
from gdrpy.arrays.interop import DeviceArray, host_array, packed_array
from gdrpy.common.arguments import is_of
from gdrpy.common.dtypes import DType

if TYPE_CHECKING:
    import numpy as np


class Elements:
    """An array's elements: packed in GPU memory, or a numpy array of any strides.

    For a numpy array ``dtype`` is numpy's. Another library's host array is shown as raw bytes.
    ``place`` is the region of one of ours, its first byte there and its size.
    """

    def __init__(
        self,
        dtype: DType | np.dtype[Any],
        shape: tuple[int, ...],
        data: DeviceArray | np.ndarray[Any, Any],
        place: tuple[Any, int, int] | None = None,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.data = data
        self.place = place


def elements_of(call: str, array: Any) -> Elements:
    """The elements of any library's array, or of any object that numpy can make an array of.

    Waits for the work that the library has queued on the array. Raises TypeError for text, for
    several arrays, for masked ones and for unknown element types, ValueError for GPU arrays that
    are not packed in C order.
    """
    import numpy as np

    masked = sys.modules.get("numpy.ma")
    if masked and isinstance(array, masked.MaskedArray):
        raise TypeError(f"{call}: a masked array has elements without a value: give array.filled()")
    given = isinstance(array, np.ndarray | np.generic) and not isinstance(array, str)
    if not given:
        refuse_others(call, array)
        array = readable(array)
        on_gpu = packed_array(call, array)
        if on_gpu is not None:
            return Elements(on_gpu.dtype, on_gpu.shape, on_gpu)
        on_host = host_array(call, array)
        if on_host is not None:
            shown = np.asarray(_Shown(on_host, True))
            return Elements(on_host.dtype, on_host.shape, shown, place_of(array))
    # Of bytes numpy would make one string, which ends before its last zeros.
    plain = np.asarray(memoryview(array) if isinstance(array, bytes) and not given else array)
    if plain.dtype.kind == "U" and not given:
        raise TypeError(f"{call}: elements that are text must be encoded first: {array!r:.80}")
    if plain.dtype.hasobject and not given:
        kind = type(array).__name__
        raise TypeError(f"{call}: this {kind} is not an array of numbers: {array!r:.80}")
    return Elements(plain.dtype, plain.shape, plain)


def place_of(array: Any) -> tuple[Any, int, int] | None:
    """The region or pin that the bytes of one of our arrays lie in, the first one there, and how
    many; None for other libraries' arrays.
    """
    found: tuple[Any, int, int] | None = None
    if isinstance(array, Buffer):
        found = array._place()  # type: ignore[attr-defined]
    return found


#: The remedy for text, which numpy would store as UTF-32.
_TEXT = "text must be encoded first, as by text.encode()"


def refuse_others(call: str, value: Any) -> None:
    """Raise TypeError for text, for a path, and for an object that holds several arrays."""
    if isinstance(value, str):
        raise TypeError(f"{call}: {_TEXT}, and this is {value!r:.80}")
    if isinstance(value, os.PathLike):
        raise TypeError(
            f"{call}: this is a path, {os.fspath(value)!r:.80}: read the file first, as by "
            f"np.load(path) or path.read_bytes(), or load a safetensors file by broker.load()"
        )
    if isinstance(value, abc.Mapping) or hasattr(value, "state_dict"):
        raise TypeError(
            f"{call}: this {type(value).__name__} holds arrays by name, and the call takes one: "
            f"pass them to broker.put_tensors(name, tensors) or gdrpy.safetensors.store(region, "
            f"tensors), or a torch module to gdrpy.torch.share(broker, name, module)"
        )


def readable(array: Any) -> Any:
    """The array to read the elements of.

    torch hands on neither parameters nor lazy conjugates and negations.
    """
    if is_of(array, "torch", "Tensor"):
        return array.detach().resolve_conj().resolve_neg()
    return array


def host_view(call: str, array: Any, writable: bool) -> np.ndarray[Any, Any]:
    """Another library's host array, for the C core, which takes buffers; elements of raw bytes.

    Raises TypeError for any other object.
    """
    import numpy as np

    refuse_others(call, array)
    found = host_array(call, array if writable else readable(array))
    if found is None:
        raise TypeError(
            f"{call}: this {type(array).__name__} is not in host memory: pass it to write() or "
            f"readinto() of a Region, which take arrays of a GPU, or copy it to the host first"
        )
    return np.asarray(_Shown(found, found.readonly or not writable))


def as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of an array in C order, without a copy if they already lie in C order."""
    import numpy as np

    return np.asarray(array, order="C").reshape(-1).view(np.uint8)


class _Shown:
    """An array for numpy, with elements of raw bytes."""

    def __init__(self, array: DeviceArray, readonly: bool) -> None:
        self._owner = array.owner
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": f"|V{array.dtype.nbytes}",
            "data": (array.address, readonly),
            "strides": array.strides,
        }
