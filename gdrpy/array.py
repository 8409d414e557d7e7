"""A packed array of one element type in a region's memory."""

from __future__ import annotations

import math
import operator
import sys
from typing import TYPE_CHECKING, Any

from gdrpy import cuda
from gdrpy._arguments import as_int, as_range
from gdrpy._core import _mapping
from gdrpy._dtypes import as_dtype
from gdrpy._resource import Owner
from gdrpy.errors import MissingView

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

    from gdrpy.region import Region

#: DLPack's numbers of kinds of devices. The CPU view of GPU memory counts as the CPU's.
_CPU, _CUDA = 1, 2
#: Neither numpy nor DLPack's consumers take more.
MAX_DIMENSIONS = 64


class Array:
    """Elements in C order from byte ``offset`` of a region on. Made by :meth:`Region.array`.

    ``dtype`` is the safetensors name of the element type ("F32", "BF16"), ``shape`` a tuple of
    lengths, ``nbytes`` the size in bytes. It keeps its region. Arrays made from it keep the
    memory; the region's ``close()`` raises BufferError while one is alive. Threads may share it.
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

    def write(self, array: ArrayLike) -> None:
        """Copy an array of the same shape and element type into the region, the fast way.

        Raises TypeError for another element type, ValueError for another shape, ReadOnly, Closed.
        """
        import numpy as np

        data = np.asarray(array, order="C")
        kind = as_dtype("Array.write", data.dtype)
        if kind != self._kind:
            raise TypeError(
                f"Array.write: the array's dtype is {kind.name}, and this Array's {self.dtype}"
            )
        if data.shape != self.shape:
            raise ValueError(
                f"Array.write: the array's shape is {data.shape}, and this Array's {self.shape}"
            )
        self.region.write(as_bytes(data), self.offset)

    def read(self) -> np.ndarray[Any, Any]:
        """A new array of a copy of the elements, made the fast way. Raises as :meth:`numpy`."""
        import numpy as np

        array = np.empty(self.shape, self._kind.numpy("Array.read"))
        self.region.readinto(as_bytes(array), self.offset)
        return array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The GPU view (version 3), for cupy, numba, torch and others.

        Absent without the GPU view, and for element types that have no type string there.
        """
        if not self._kind.native:
            raise AttributeError(
                f"__cuda_array_interface__ cannot say {self.dtype}: use from_dlpack"
            )
        try:
            ptr = self.ptr
        except MissingView as error:
            raise AttributeError(f"__cuda_array_interface__: {error}") from None
        if not self._aligned:
            raise AttributeError(f"__cuda_array_interface__: {self._misplaced()}")
        return {
            "shape": self.shape,
            "typestr": self._kind.numpy("__cuda_array_interface__").str,
            "data": (ptr if self.nbytes else 0, False),
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Which view :meth:`__dlpack__` gives: (2, device) the GPU's, (1, 0) the CPU's."""
        try:
            _ = self.region.ptr
        except MissingView:
            return _CPU, 0
        # A simulated GPU's memory is the host's, and no CUDA library knows the device.
        if cuda.simulated():
            return _CPU, 0
        assert self.region.device is not None
        return _CUDA, self.region.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule of the GPU view, if the region has one on a real GPU, else of the CPU's.

        ``dl_device=(1, 0)`` asks for the CPU view. gdrpy queues no GPU work, so nothing is waited
        for on ``stream``. Raises BufferError for what cannot be had, ValueError for an impossible
        stream.
        """
        native = self.__dlpack_device__()
        kind, number = native if dl_device is None else _as_device(dl_device)
        _check_stream(stream, kind)
        if copy:
            raise BufferError("Array.__dlpack__: copy=True is not offered: copy Array.read()")
        if not self._aligned:
            raise BufferError(f"Array.__dlpack__: {self._misplaced()}")
        versioned = max_version is not None and max_version[0] >= 1
        if (kind, number) == (_CPU, 0):
            address, readonly, owner = self._cpu_memory(versioned)
        elif (kind, number) == native:
            address, readonly = self.ptr, False
            owner = _Hold(self.region._allocation)
        else:
            raise BufferError(
                f"Array.__dlpack__: it is not on DLPack device {(kind, number)}, but on "
                f"{native}: copy it there with the library that asks"
            )
        return _mapping.dlpack(
            address,
            kind,
            number,
            self.shape,
            self._kind.code,
            8 * self._kind.nbytes,
            readonly,
            owner,
            versioned,
        )

    def _cpu_memory(self, versioned: bool) -> tuple[int, bool, object]:
        """Address in the CPU view, whether it is read-only, and what keeps it."""
        try:
            cpu = self.region.cpu
        except MissingView as error:
            raise BufferError(f"Array.__dlpack__: {error}") from None
        if cpu.readonly and not versioned:
            raise BufferError(
                "Array.__dlpack__: the CPU view is read-only, which the consumer cannot be told: "
                "it must ask for max_version=(1, 0) or later"
            )
        return cpu.address + self.offset, cpu.readonly, memoryview(cpu)

    @property
    def _aligned(self) -> bool:
        return self.offset % self._kind.nbytes == 0

    def _misplaced(self) -> str:
        return (
            f"offset {self.offset} is not aligned to the {self._kind.nbytes} bytes of "
            f"{self.dtype}: take a copy by Array.read()"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Array, (self.region, self.shape, self.dtype, self.offset)

    def __repr__(self) -> str:
        return f"<Array {self.dtype} {self.shape} at offset {self.offset} of {self.region!r}>"


class _Hold:
    """One user of an allocation, for as long as it is referred to."""

    def __init__(self, allocation: Owner) -> None:
        allocation.hold()
        self._allocation = allocation

    def __del__(self) -> None:
        if hasattr(self, "_allocation") and not sys.is_finalizing():
            self._allocation.let_go()


def as_shape(call: str, value: Any) -> tuple[int, ...]:
    """A tuple of lengths; an int is a shape of one. Raises TypeError, ValueError."""
    lengths = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    shape = tuple(as_int(call, "shape", length) for length in lengths)
    if len(shape) > MAX_DIMENSIONS or not all(0 <= length < 1 << 62 for length in shape):
        raise ValueError(
            f"{call}: a shape is up to {MAX_DIMENSIONS} lengths of 0 or more, and this is {value!r}"
        )
    return shape


def as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of a contiguous array, without a copy."""
    import numpy as np

    return array.reshape(-1).view(np.uint8)


def _as_device(value: Any) -> tuple[int, int]:
    try:
        kind, number = value
        return operator.index(kind), operator.index(number)
    except (TypeError, ValueError):
        raise TypeError(
            f"Array.__dlpack__: dl_device must be a pair of ints, and is {value!r}"
        ) from None


def _check_stream(stream: Any, kind: int) -> None:
    """A consumer's stream: of a GPU 1 (legacy), 2 (per thread), a handle, or -1 (do not wait)."""
    if stream is None:
        return
    number = as_int("Array.__dlpack__", "stream", stream)
    if kind != _CUDA or number < -1 or number == 0:
        raise ValueError(
            f"Array.__dlpack__: stream {number} is none: it must be None for the CPU view, and -1 "
            f"or 1 or more for the GPU view"
        )
