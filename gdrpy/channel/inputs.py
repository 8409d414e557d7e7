"""The inputs of a step: named arrays that the CPU stores, where others queue copies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gdrpy._core._mapping import Undo
from gdrpy.arrays.array import Array, as_shape
from gdrpy.arrays.elements import as_bytes, elements_of
from gdrpy.arrays.interop import DeviceArray
from gdrpy.channel.ring import Rooted
from gdrpy.common.arguments import as_int
from gdrpy.common.dtypes import DType, as_dtype
from gdrpy.common.resource import Closing
from gdrpy.common.sizes import counted
from gdrpy.region import alloc

if TYPE_CHECKING:
    import numpy as np

#: Each array begins at a multiple of so many bytes, as CUDA's own allocations do.
_ALIGNMENT = 256


class _Input(NamedTuple):
    """An array of each set: its place there, and numpy's own type for its elements, if any."""

    start: int
    shape: tuple[int, ...]
    kind: DType
    dtype: np.dtype[Any] | None


class StepInputs(Rooted, Closing):
    """Named arrays in GPU memory for the next step of a GPU, such as a captured graph.

    Args:
        arrays: By name, the shape and the element type of an array, as for :meth:`Region.array`.
        sets: How many sets of these arrays there are. They take turns, so that the CPU can store
            the next step's inputs while the GPU still reads this one's.
        device: The GPU, named as for :func:`gdrpy.alloc`.

    :meth:`store` stores the values of a step into the next set by the CPU, which queues nothing.
    :attr:`sets` has the arrays, whose addresses never change: capture a graph for each set, and
    launch the one whose number ``store`` returns. Do not store into a set that the GPU still
    reads. One thread at a time may store.

    Raises ValueError, TypeError, NotFound (no such device), OutOfMemory, BackendUnavailable,
    CudaError.
    """

    def __init__(
        self, arrays: Mapping[str, tuple[Any, Any]], *, sets: int = 2, device: Any = 0
    ) -> None:
        import numpy as np

        call = "StepInputs"
        count = as_int(call, "sets", sets)
        if not isinstance(arrays, Mapping):
            raise TypeError(f"{call}: arrays must be a dict by name, not {arrays!r:.80}")
        if count < 1 or not arrays:
            raise ValueError(f"{call}: takes a set and an array at least, not {count} of {arrays}")
        self._inputs: dict[str, _Input] = {}
        #: Bytes of a set.
        self._nbytes = 0
        for name, of in arrays.items():
            if not isinstance(name, str) or not isinstance(of, tuple | list) or len(of) != 2:
                raise TypeError(
                    f"{call}: arrays has a shape and an element type for each name, such as "
                    f"{{'tokens': (256, 'int32')}}, and not {of!r:.80} for {name!r:.80}"
                )
            lengths, element = of
            shape, kind = as_shape(call, lengths), as_dtype(call, element)
            dtype = np.dtype(kind.array_name) if kind.native else None
            self._inputs[name] = _Input(self._nbytes, shape, kind, dtype)
            self._nbytes += -(-math.prod(shape) * kind.nbytes // _ALIGNMENT) * _ALIGNMENT
        with Undo() as undo:
            self._region = undo.keep(alloc(max(self._nbytes, 1) * count, device))
            #: The arrays of each set by name.
            self.sets: tuple[dict[str, Array], ...] = tuple(
                {
                    name: self._region.array(one.shape, one.kind.name, first + one.start)
                    for name, one in self._inputs.items()
                }
                for first in range(0, max(self._nbytes, 1) * count, max(self._nbytes, 1))
            )
            undo.forget()
        #: The number of the set that the next :meth:`store` fills.
        self.next = 0
        self._ndarray = np.ndarray

    def store(self, /, **values: Any) -> int:
        """Store values into the next set, with one fence, and return the number of the set.

        A value is an array in host memory, or anything that numpy makes one of, of its array's
        element type and shape. Its first axis may be shorter: the other rows stay as they are, and
        so do arrays that are not named. A kernel that starts afterwards sees the values.

        Raises TypeError, ValueError, Closed, Forked; nothing is stored then.
        """
        number, first = self.next, self.next * self._nbytes
        pieces = []
        for name, value in values.items():
            one = self._inputs.get(name)
            if one is None:
                known = ", ".join(self._inputs)
                raise ValueError(f"StepInputs.store: there is no input {name!r}, but {known}")
            shape, packed = self._packed(name, one, value)
            if shape != one.shape and not _begins(shape, one.shape):
                raise ValueError(
                    f"StepInputs.store: {name} has the shape {one.shape}, and the value {shape}"
                )
            pieces.append((first + one.start, packed))
        self._region.cpu.write_many(pieces)
        self.next = (number + 1) % len(self.sets)
        return number

    def _packed(self, name: str, one: _Input, value: Any) -> tuple[tuple[int, ...], Any]:
        """The shape of any library's array, and its bytes."""
        if type(value) is self._ndarray and value.dtype is one.dtype and value.flags.c_contiguous:
            return value.shape, value  # the general way takes 15 us
        call = f"StepInputs.store: {name}"
        source = elements_of(call, value)
        kind = as_dtype(call, source.dtype)
        if kind != one.kind:
            raise TypeError(f"{call} is of {one.kind.name}, and the value of {kind.name}")
        if isinstance(source.data, DeviceArray):
            raise TypeError(f"{call}: the value lies in GPU memory: copy it to the host first")
        return source.shape, as_bytes(source.data)

    def close(self) -> None:
        """Free the memory. Raises BufferError while other libraries' arrays use it."""
        self._region.close()

    def _retire(self) -> bool:
        return self._region._retire()

    def __repr__(self) -> str:
        return (
            f"<StepInputs of {', '.join(self._inputs)} in {counted(len(self.sets), 'set')}, "
            f"{self._region!r}>"
        )


def _begins(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether an array of a shape can be the first rows of a whole one."""
    return len(shape) == len(whole) and shape[1:] == whole[1:] and shape[:1] <= whole[:1]
