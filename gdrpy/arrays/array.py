"""A packed array of one element type in a region's memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gdrpy import cuda
from gdrpy._core import _mapping
from gdrpy.arrays import dlpack as _dlpack
from gdrpy.arrays.dlpack import CUDA, HOST, Hold, View
from gdrpy.arrays.dtypes import as_dtype
from gdrpy.common.arguments import as_int, as_range
from gdrpy.errors import MissingView

if TYPE_CHECKING:
    import numpy as np

    from gdrpy.region import Region

#: Neither numpy nor DLPack's consumers take more.
MAX_DIMENSIONS = 64


class Array(_mapping.Buffer):
    """Elements in C order from byte ``offset`` of a region on. Made by :meth:`Region.array`.

    ``dtype`` is the safetensors name of the element type ("F32", "BF16"), ``shape`` a tuple of
    lengths, ``nbytes`` the size in bytes. It keeps its region. Threads may share it.

    Other libraries take it without a copy: the GPU view by ``from_dlpack`` and by
    ``__cuda_array_interface__``, the CPU view as a buffer (``numpy.asarray``, ``memoryview``). What
    they make of it keeps the memory, and the region's ``close()`` raises BufferError while it is
    alive; but for users of ``__cuda_array_interface__``, which keep the Array and are not counted.
    """

    def __init__(self, region: Region, shape: Any, dtype: Any, offset: Any = 0) -> None:
        call = "Region.array"
        self._kind = as_dtype(call, dtype)
        self.region = region
        self.dtype = self._kind.name
        self.shape = as_shape(call, shape)
        self.nbytes = math.prod(self.shape) * self._kind.nbytes
        self.offset, _ = as_range(call, offset, self.nbytes, region.nbytes)

    @property
    def ptr(self) -> int:
        """The GPU address of the first element. Raises MissingView without the GPU view."""
        return self.region.ptr + self.offset

    def numpy(self) -> np.ndarray[Any, Any]:
        """An array over the CPU view, without a copy.

        Raises MissingView without the CPU view, ValueError if it is not aligned to its
        elements, TypeError where numpy lacks the element type and ml_dtypes is not installed.
        """
        return self.region.cpu.numpy(self._kind.numpy("Array.numpy"), self.shape, self.offset)

    def write(self, array: Any) -> None:
        """Copy an array of the same shape and element type into the region, the fast way.

        It may be of any library that speaks DLPack or ``__cuda_array_interface__``, or what numpy
        makes an array of. From the GPU that the region is on it is copied by that GPU, after what
        its library has queued on it. The copy is done on return.

        Raises TypeError for another element type, ValueError for another shape and for GPU arrays
        that are not packed in C order, ReadOnly, Closed.
        """
        from gdrpy.arrays.elements import elements_of

        call = "Array.write"
        source = elements_of(call, array)
        kind = as_dtype(call, source.dtype)
        if kind != self._kind:
            raise TypeError(
                f"{call}: the array's dtype is {kind.name}, and this Array's {self.dtype}"
            )
        if source.shape != self.shape:
            raise ValueError(
                f"{call}: the array's shape is {source.shape}, and this Array's {self.shape}"
            )
        source.copy_to(call, self.region, self.offset)

    def read(self) -> np.ndarray[Any, Any]:
        """A new array of a copy of the elements, made the fast way. Raises as :meth:`numpy`."""
        import numpy as np

        array = np.empty(self.shape, self._kind.numpy("Array.read"))
        self.region.readinto(array.reshape(-1).view(np.uint8), self.offset)
        return array

    def _buffer(self) -> memoryview:
        """The CPU view, for ``memoryview(array)`` and ``numpy.asarray(array)``.

        Raises BufferError for element types that buffers have no letter for, and as :meth:`numpy`.
        """
        if not self._kind.native:
            raise BufferError(self._unspoken("a buffer"))
        return self.numpy().data

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The CPU view (version 3), for numpy and others; its ``data`` keeps the memory.

        Raises TypeError for element types that have no type string, and as :meth:`numpy`.
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

        gdrpy queues no GPU work on it, so its ``stream`` is None: there is nothing to wait for.

        Absent without the GPU view, on the simulated GPU, and for element types that have no type
        string there.
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
                f"{name}: a simulated GPU's memory is the host's, where no CUDA library finds it: "
                f"use from_dlpack"
            )
        if not self._aligned:
            raise AttributeError(f"{name}: {self._misplaced()}")
        return {
            "shape": self.shape,
            "typestr": self._kind.numpy(name).str,
            "data": (ptr if self.nbytes else 0, self.region.readonly),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where :meth:`__dlpack__` shows it: (2, device) on a GPU, (1, 0) in host memory."""
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
        """A DLPack capsule of the GPU view, or of the CPU view where the region has no other.

        A simulated GPU's memory is the host's, and its GPU view is given as that. ``dl_device=(1,
        0)`` asks for host memory: on a real GPU that is the CPU view.

        gdrpy queues no GPU work, so nothing is waited for on ``stream``. With ``copy=True``, and
        where ``dl_device`` does not see the memory unless ``copy`` is False, it is a copy: on a GPU
        made after what is queued on ``stream``, and in either case done on return.

        Raises BufferError for what cannot be had, ValueError for an impossible stream.
        """
        return _dlpack.export(
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
            owner = Hold(region._allocation)
            return View(self.ptr, device, self.shape, self._kind, region.readonly, owner)
        if device == HOST and region._has_cpu_view:
            cpu = region.cpu
            return View(
                cpu.address + self.offset,
                device,
                self.shape,
                self._kind,
                cpu.readonly,
                memoryview(cpu),
            )
        return None

    def _copy(self, device: tuple[int, int], stream: int | None) -> View:
        if device == self.__dlpack_device__() != HOST:
            return self._copy_on_gpu(device, stream)
        return _dlpack.host_copy(
            "Array.__dlpack__",
            device,
            self.shape,
            self._kind,
            lambda data: self.region.readinto(data, self.offset),
        )

    def _copy_on_gpu(self, device: tuple[int, int], stream: int | None) -> View:
        from gdrpy.copies import dma
        from gdrpy.region import alloc

        source = Hold(self.region._allocation)
        copy = alloc(max(self.nbytes, 1), device[1], cpu=False)
        if self.nbytes:
            dma.copy(device[1], copy.ptr, self.ptr, self.nbytes, stream)
        del source
        owner = Hold(copy._allocation)
        return View(copy.ptr, device, self.shape, self._kind, False, owner)

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

    def __repr__(self) -> str:
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
