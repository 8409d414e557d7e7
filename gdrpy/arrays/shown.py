"""Shown, the base of regions and pins, which other libraries take as an array."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from gdrpy.arrays.array import Array
from gdrpy.arrays.asynchronous import Asynchronous
from gdrpy.common.dtypes import as_dtype

if TYPE_CHECKING:
    import numpy as np


class Shown(Asynchronous):
    """Memory that is also an array, ``array()``, and that arrays are made in."""

    def array(
        self, shape: int | tuple[int, ...] | None = None, dtype: Any = "U8", offset: int = 0
    ) -> Array:
        """A part of the memory as an array in C order.

        Args:
            shape: The shape; None is one dimension with all that fits.
            dtype: The elements' type: numpy's, torch's or safetensors', or a name of it:
                ``torch.bfloat16``, "bfloat16", "bf16", "BF16". A name that means two types, as
                "U8", is safetensors'.
            offset: The byte at which the first element begins.

        Raises ValueError if they do not fit, TypeError.
        """
        self._check(f"{type(self).__name__}.array")
        return Array(self, shape, dtype, offset)

    def _as_array(self) -> Array:
        """The array that other libraries see."""
        return self.array()

    def _to_show(self, interface: str) -> Array:
        """The array, for an interface that is absent if there is none."""
        try:
            return self._as_array()
        except TypeError as error:
            raise AttributeError(f"{interface}: {error}") from None

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The CPU view of ``array()`` (version 3): see :class:`gdrpy.Array`."""
        return self._to_show("__array_interface__").__array_interface__

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The GPU view of ``array()`` (version 3): see :class:`gdrpy.Array`."""
        return self._to_show("__cuda_array_interface__").__cuda_array_interface__

    def __dlpack__(self, **wishes: Any) -> object:
        """``array()``: see :meth:`Array.__dlpack__`."""
        return self._as_array().__dlpack__(**wishes)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where :meth:`__dlpack__` shows it: (2, device) on a GPU, (1, 0) in host memory."""
        return self._as_array().__dlpack_device__()

    def mirror(
        self, load: bool = False, dtype: Any = "uint8", shape: int | tuple[int, ...] | None = None
    ) -> AbstractContextManager[np.ndarray[Any, Any]]:
        """A writable array in host memory, whose bytes go into the region at the block's end.

        Args:
            load: Whether to copy the region's bytes in first. Otherwise the initial values are
                undefined: fill the whole array.
            dtype: The elements' type.
            shape: The shape, from byte 0 on; None is the whole region.

        The array's memory is page-locked if the region has a GPU view. Without one, memory of up to
        256 MiB is registered for the copy engine once the region has used that. When its last array
        is gone, such memory is kept for the next mirror, or freed beyond 256 MiB. Nothing is copied
        back if the block raises. A read-only region has a read-only mirror.
        """
        call = f"{type(self).__name__}.mirror"
        self._check(call)
        return self._mirror(call, load, dtype, shape)

    @contextmanager
    def _mirror(
        self, call: str, load: bool, dtype: Any, shape: Any
    ) -> Iterator[np.ndarray[Any, Any]]:
        kind = as_dtype(call, dtype)
        array_kind = kind.numpy(call)
        part = Array(self, shape, kind)
        memory = self._host_memory(part.nbytes, bool(self._reached))
        if load:
            self.readinto(memory, 0)
        array = memory.view(array_kind).reshape(part.shape)
        writable = not self.readonly
        array.flags.writeable = writable
        yield array
        if writable:
            self.write(memory)
