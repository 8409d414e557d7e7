"""Arrays in regions and pins."""

from __future__ import annotations

import math
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, Self

from gdrpy import cuda
from gdrpy._core import _mapping
from gdrpy.arrays.copied import Copied
from gdrpy.arrays.elements import elements_of
from gdrpy.arrays.interop import DeviceArray
from gdrpy.common import dlpack
from gdrpy.common.arguments import as_int, as_range, is_of
from gdrpy.common.dlpack import CUDA, HOST, View
from gdrpy.common.dtypes import as_dtype
from gdrpy.common.resource import Closing, Hold, Lasting
from gdrpy.copies import dma
from gdrpy.errors import Closed, MissingView, ReadOnly
from gdrpy.memory import vmm
from gdrpy.memory.view import Flag

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

#: The limit of numpy and of DLPack consumers.
MAX_DIMENSIONS = 64


class Array(Closing, _mapping.Buffer):
    """Elements in C order from byte ``offset`` of a region on. Made by :meth:`Region.array`, and by
    :func:`from_tensor` for another library's array.

    ``dtype`` is the safetensors name of the element type ("F32", "BF16"), ``shape`` a tuple of
    lengths, ``nbytes`` the size in bytes. It keeps its ``region``, which may be a Pin. Threads may
    share it.

    Other libraries use it without a copy: the GPU view by ``from_dlpack`` and by
    ``__cuda_array_interface__``, the CPU view as a buffer (``numpy.asarray``, ``memoryview``).
    Their arrays keep the memory, and the region's ``close()`` raises BufferError while they live.
    Users of ``__cuda_array_interface__`` keep the Array instead and are not counted.

    :meth:`item`, ``int()``, ``float()`` and ``bool()`` copy the one element to the host. An Array
    compares and computes nothing: ``==`` and ``in`` raise TypeError.
    """

    #: Kept for from_tensor() until it is closed: the tensor, and the Pin, which is closed too.
    _tensor: object = None
    _pin: Copied | None = None

    def __init__(
        self, region: Copied, shape: Any, dtype: Any, offset: Any = 0, readonly: bool = False
    ) -> None:
        call = f"{type(region).__name__}.array"
        self._kind = as_dtype(call, dtype)
        self.region = region
        self.dtype = self._kind.name
        if shape is None:
            shape = as_range(call, offset, None, region.nbytes)[1] // self._kind.nbytes
        self.shape = as_shape(call, shape)
        self.nbytes = math.prod(self.shape) * self._kind.nbytes
        self.offset, _ = as_range(call, offset, self.nbytes, region.nbytes)
        self._readonly = readonly
        self._closed = False

    @classmethod
    def of_tensor(cls, region: Copied, tensor: DeviceArray, offset: int, owned: bool) -> Self:
        """Another library's array that lies in a region, or in a Pin, which is ``owned``."""
        array = cls(region, tensor.shape, tensor.dtype, offset, tensor.readonly)
        array._tensor = tensor.owner
        array._pin = region if owned else None
        return array

    @property
    def readonly(self) -> bool:
        """Whether it is read-only, because its region or its library's array is."""
        return self._readonly or self.region.readonly

    def _check(self, call: str) -> None:
        if self._closed:
            raise Closed(f"{call}: the Array is closed")

    def _place(self) -> tuple[Copied, int, int]:
        self._check("copying an Array")
        return self.region, self.offset, self.nbytes

    @property
    def ptr(self) -> int:
        """The GPU address of the first element. Raises MissingView without the GPU view."""
        self._check("Array.ptr")
        return self.region.ptr + self.offset

    def numpy(self) -> np.ndarray[Any, Any]:
        """An array over the CPU view, without a copy.

        Raises MissingView without the CPU view, ValueError if it is not aligned to its
        elements, TypeError if numpy lacks the element type and ml_dtypes is not installed.
        """
        self._check("Array.numpy")
        array = self.region.cpu._numpy("Array.numpy", self._kind, self.shape, self.offset)
        if self._readonly:
            array.flags.writeable = False
        return array

    def flag(self, offset: int = 0, width: int = 4) -> Flag:
        """One aligned word of ``width`` (4 or 8) bytes at byte ``offset`` of the array.

        A read-only array has read-only flags.
        """
        call = "Array.flag"
        self._check(call)
        start, _ = as_range(call, offset, width, self.nbytes)
        if self._readonly and not self.region.readonly:
            part = self.region.map(self.offset + start, width, readonly=True)
            return part.flag(0, width)
        return self.region.flag(self.offset + start, width)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len: an Array of one element without dimensions has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[place] for place in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self._element("bool"))

    def __int__(self) -> int:
        return int(self._element("int"))

    def __float__(self) -> float:
        return float(self._element("float"))

    def __index__(self) -> int:
        if self.shape:  # or bytes(array) would be as many zeros as the element says
            raise TypeError(f"index: an Array of shape {self.shape} is not one element: index it")
        return index(self._element("index"))

    def __bytes__(self) -> bytes:
        return self.read().tobytes()

    def item(self) -> Any:
        """The only element, copied to the host, as a Python number.

        Raises TypeError unless there is exactly one, and as :meth:`numpy`.
        """
        return self._element("Array.item")

    def _element(self, call: str) -> Any:
        if math.prod(self.shape) != 1:
            raise TypeError(
                f"{call}: an Array of shape {self.shape} is not one element: index it, or use its "
                f"numpy() or read()"
            )
        return self.read().item()

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if hasattr(other, "shape") or isinstance(other, int | float | complex | list | tuple):
            raise TypeError("==: an Array compares no elements: compare its numpy() or read()")
        return NotImplemented

    __hash__ = object.__hash__

    def __contains__(self, item: object) -> bool:
        raise TypeError("in: an Array compares no elements: look in its numpy() or read()")

    def __getitem__(self, index: Any) -> Array:
        """The part at an index of ints, slices and ``...``, as of numpy's, without a copy.

        Raises IndexError, TypeError for any other index, and ValueError if the part's elements are
        not packed in C order.
        """
        call = "Array[...]"
        self._check(call)
        shape, first = part_of(call, self.shape, index)
        offset = self.offset + first * self._kind.nbytes
        part = Array(self.region, shape, self._kind, offset, self._readonly)
        part._tensor = self._tensor
        return part

    def __setitem__(self, index: Any, value: Any) -> None:
        """:meth:`write` to a part; a real number goes to each of its elements.

        Raises as :meth:`write`, and ValueError for a number that the element type does not hold,
        as 300 or 1.5 in U8. Floating-point types round it.
        """
        part = self[index]
        if isinstance(value, Real) or is_of(value, "numpy", "bool_"):
            import numpy as np

            value = np.broadcast_to(self._kind.element("Array[...]", value), part.shape)
        part.write(value)

    def write(self, array: Any) -> None:
        """Copy an array of the same shape and element type into the region, by the fastest path.

        The array may be of any library with DLPack or ``__cuda_array_interface__``, or any object
        that numpy can make an array of. An array on the region's GPU is copied by that GPU, after
        the work that its library has queued on it. The copy is complete on return.

        Raises TypeError for another element type, ValueError for another shape and for GPU arrays
        that are not packed in C order, ReadOnly, Closed.
        """
        call = "Array.write"
        self._check(call)
        if self._readonly:
            raise ReadOnly(f"{call}: the library that made the array made it read-only")
        source = elements_of(call, array)
        kind = as_dtype(call, source.dtype)
        if kind != self._kind:
            raise TypeError(
                f"{call}: the array's dtype is {kind.name}, and this Array's {self.dtype}: convert "
                f"it first"
            )
        if source.shape != self.shape:
            raise ValueError(
                f"{call}: the array's shape is {source.shape}, and this Array's {self.shape}"
            )
        self.region._put(call, source, self.offset)

    def read(self) -> np.ndarray[Any, Any]:
        """A copy of the elements in a new array, by the fastest path. Raises as :meth:`numpy`."""
        import numpy as np

        self._check("Array.read")
        array = np.empty(self.shape, self._kind.numpy("Array.read"))
        self.region.readinto(array.reshape(-1).view(np.uint8), self.offset)
        return array

    def _buffer(self, formatted: bool, /) -> memoryview:
        """The CPU view, for ``memoryview(array)`` and ``numpy.asarray(array)``.

        If the elements' type has no format, it is bytes for consumers that ask for none, and others
        get a BufferError. Raises as :meth:`numpy`.
        """
        if self._kind.native:
            return self.numpy().data
        if formatted:
            raise BufferError(self._unspoken("a buffer"))
        return Array(self.region, self.nbytes, "U8", self.offset, self._readonly).numpy().data

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The CPU view (version 3), for numpy and others; its ``data`` keeps the memory.

        Raises TypeError for element types without a type string, and as :meth:`numpy`.
        """
        if not self._kind.native:
            raise TypeError(self._unspoken("__array_interface__"))
        return {
            "shape": self.shape,
            "typestr": self._kind.numpy("__array_interface__").str,
            "data": memoryview(self),
            "version": 3,
        }

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The GPU view (version 3), for cupy, numba, torch and others.

        gdrpy queues no GPU work on it, so ``stream`` is None: consumers need not wait.

        Absent without the GPU view, on the simulated GPU, and for element types without a type
        string.
        """
        name = "__cuda_array_interface__"
        if not self._kind.native:
            raise AttributeError(self._unspoken(name))
        try:
            ptr = self.ptr
        except MissingView as error:
            raise AttributeError(f"{name}: {error}") from None
        if cuda.simulated():
            raise AttributeError(
                f"{name}: a simulated GPU's memory is host memory, which CUDA libraries cannot "
                f"use: use from_dlpack"
            )
        if not self._aligned:
            raise AttributeError(f"{name}: {self._misplaced()}")
        return {
            "shape": self.shape,
            "typestr": self._kind.numpy(name).str,
            "data": (ptr if self.nbytes else 0, self.readonly),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where :meth:`__dlpack__` shows it: (2, device) on a GPU, (1, 0) in host memory."""
        self._check("Array.__dlpack_device__")
        if self.region._has_gpu_view and not cuda.simulated():
            assert self.region.device is not None
            return CUDA, self.region.device
        return HOST

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule of the GPU view, or of the CPU view if the region has no GPU view.

        A simulated GPU's memory is host memory, and so is its GPU view. ``dl_device=(1, 0)`` asks
        for host memory: on a real GPU the CPU view.

        gdrpy queues no GPU work, so ``stream`` need not wait. The capsule holds a copy with
        ``copy=True``, and if ``dl_device`` does not see the memory, unless ``copy`` is False. A
        copy on a GPU is made after the work queued on ``stream``. Copies are complete on return.

        Raises BufferError if the request cannot be met, ValueError for an invalid stream.
        """
        return dlpack.export(
            "Array.__dlpack__",
            self,
            stream=stream,
            max_version=max_version,
            dl_device=dl_device,
            copy=copy,
        )

    def _view(self, device: tuple[int, int]) -> View | None:
        region = self.region
        if not self._aligned:
            raise BufferError(f"Array.__dlpack__: {self._misplaced()}")
        if region._has_gpu_view and device == self.__dlpack_device__():
            owner = Hold(region._memory, Lasting)
            return View(self.ptr, device, self.shape, self._kind, self.readonly, owner)
        if device == HOST and region._has_cpu_view:
            cpu = region.cpu
            address, readonly = cpu.address + self.offset, self._readonly or cpu.readonly
            return View(address, device, self.shape, self._kind, readonly, memoryview(cpu))
        return None

    def _copy(self, device: tuple[int, int], stream: int | None) -> View:
        if device == self.__dlpack_device__() != HOST:
            return self._copy_on_gpu(device, stream)
        return dlpack.host_copy(
            "Array.__dlpack__",
            device,
            self.shape,
            self._kind,
            lambda data: self.region.readinto(data, self.offset),
        )

    def _copy_on_gpu(self, device: tuple[int, int], stream: int | None) -> View:
        copy = vmm.create(max(self.nbytes, 1), device[1])
        assert copy.ptr is not None
        if self.nbytes:
            with Hold(self.region._memory):
                dma.copy(device[1], copy.ptr, self.ptr, self.nbytes, stream)
        return View(copy.ptr, device, self.shape, self._kind, False, Hold(copy))

    @property
    def _aligned(self) -> bool:
        return self.offset % self._kind.nbytes == 0

    def _misplaced(self) -> str:
        return (
            f"offset {self.offset} is not aligned to the {self._kind.nbytes} bytes of "
            f"{self.dtype}: take a copy by Array.read()"
        )

    def _unspoken(self, protocol: str) -> str:
        return f"{protocol} cannot say {self.dtype}: use from_dlpack, or Array.numpy()"

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` has been called."""
        return self._closed

    def close(self) -> None:
        """Drop the tensor; the region stays open. May be called again.

        A pin that :func:`from_tensor` made is closed: raises BufferError while it has views.
        """
        if self._pin is not None:
            self._pin.close()
        self._closed = True
        self._tensor = self._pin = None

    def _retire(self) -> bool:
        pin, self._pin = self._pin, None
        self.close()
        return pin is not None and pin._retire()

    def __enter__(self) -> Self:
        self._check("with Array")
        return self

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle. Does not use the region, which may be absent after Dask moved it."""
        self._check("sending an Array")
        if not type(self.region)._is_sent:
            raise TypeError(
                "an Array in a Pin cannot be copied or pickled: send the tensor by its own library"
            )
        return {**vars(self), "_tensor": None}

    def __repr__(self) -> str:
        if self._closed:
            return "<Array CLOSED>"
        return f"<Array {self.dtype} {self.shape} at offset {self.offset} of {self.region!r}>"


def as_shape(call: str, value: Any) -> tuple[int, ...]:
    """A tuple of lengths; an int is a shape of one. Raises TypeError, ValueError."""
    lengths = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    shape = tuple(as_int(call, "shape", length) for length in lengths)
    if len(shape) > MAX_DIMENSIONS or not all(0 <= length < 1 << 62 for length in shape):
        raise ValueError(
            f"{call}: a shape is up to {MAX_DIMENSIONS} lengths of 0 or more, and this is {value!r}"
        )
    return shape


def part_of(call: str, shape: tuple[int, ...], index: Any) -> tuple[tuple[int, ...], int]:
    """The shape and the first element of the part at an index. Raises as Array.__getitem__."""
    keys = index if isinstance(index, tuple) else (index,)
    at = [number for number, key in enumerate(keys) if key is ...]
    given = len(keys) - len(at)
    if given > len(shape) or len(at) > 1:
        raise IndexError(
            f"{call}: {index!r} has {given} indices and {len(at)} '...', and the shape {shape} "
            f"takes up to {len(shape)} indices and one '...'"
        )
    whole = (slice(None),) * (len(shape) - given)
    keys = (*keys[: at[0]], *whole, *keys[at[0] + 1 :]) if at else (*keys, *whole)
    first, packed, steps = 0, 1, []
    for key, length in zip(reversed(keys), reversed(shape), strict=True):
        if isinstance(key, slice):
            chosen = range(length)[key]
            first += chosen.start * packed
            steps.append((len(chosen), chosen.step * packed))
        else:
            first += _place(call, key, length) * packed
        packed *= length
    lengths = tuple(number for number, _ in reversed(steps))
    if 0 in lengths:
        return lengths, 0
    packed = 1
    for number, step in steps:
        if number != 1 and step != packed:
            raise ValueError(
                f"{call}: the part of shape {lengths} at {index!r} of shape {shape} is not "
                f"contiguous: index array.numpy() instead, or copy rows by readinto_strided()"
            )
        packed *= number
    return lengths, first


def _place(call: str, key: Any, length: int) -> int:
    """An index of one dimension, counted from 0."""
    try:
        place = as_int(call, "an index", key)
    except TypeError as error:
        raise TypeError(
            f"{error}: it may also be a slice or '...'; for others index array.numpy()"
        ) from None
    if not -length <= place < length:
        raise IndexError(f"{call}: index {place} lies outside a dimension of length {length}")
    return place % length
