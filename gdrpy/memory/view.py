"""The CPU view: a mapping, and a flag in it."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from gdrpy import cuda
from gdrpy._core import _mapping
from gdrpy.common.arguments import as_int, as_range
from gdrpy.common.dlpack import HOST, Device, View, export, host_copy
from gdrpy.common.dtypes import DTYPES, as_numpy_dtype
from gdrpy.common.resource import HOW_TO_SEND, Closing
from gdrpy.errors import MissingView, ReadOnly

if TYPE_CHECKING:
    import numpy as np


#: How a mapping is pickled: a function to call, and its arguments before the mapping.
Travel: TypeAlias = tuple[Any, ...]


class MappingType(enum.IntEnum):
    """How the CPU caches a mapping. Copy routines are chosen by it."""

    WRITE_COMBINED = 1
    CACHED = 2
    DEVICE = 3


class Mapping(Closing, _mapping.Mapping):
    """A range of GPU memory in this process's address space.

    Supports the buffer protocol: ``memoryview(mapping)`` and numpy arrays are views of it, and
    :meth:`close` raises BufferError while one is alive. The end of a ``with`` block warns of it by
    StillInUse instead, and unmaps when the last view is gone. Offsets and sizes are in bytes.
    Several threads may use a mapping at once; concurrent writes to one place are undefined.

    Made by :class:`gdrpy.Region` and :class:`gdrpy.Pin`. ``ptr`` is the GPU address of the first
    byte, None in a process that has only the CPU view.
    """

    #: How to pickle it; None for memory that cannot be shared.
    _travel: Travel | None = None

    @property
    def mapping_type(self) -> MappingType:
        """How the CPU caches the mapping."""
        return MappingType(self._type)

    def numpy(
        self, dtype: Any = "uint8", shape: int | tuple[int, ...] | None = None, offset: int = 0
    ) -> np.ndarray[Any, Any]:
        """An array over the mapping's bytes, without a copy.

        Args:
            dtype: The elements' type.
            shape: The shape; None is one dimension with all that fits.
            offset: The byte at which the first element begins, aligned to the type.

        ``dtype`` is as of :meth:`Region.array`, or any other that numpy knows.

        Element-wise reads of write-combined memory take about 1 us each: use :meth:`read` for more
        than a few bytes. Raises ValueError if the array does not fit or is not aligned, TypeError.
        """
        return self._numpy("Mapping.numpy", dtype, shape, offset)

    def _numpy(self, call: str, dtype: Any, shape: Any, offset: int) -> np.ndarray[Any, Any]:
        import numpy as np

        kind = as_numpy_dtype(call, dtype)
        if kind.hasobject:
            raise TypeError(f"{call}: dtype {kind} holds references to objects, not bytes")
        start, room = as_range(call, offset, None, self.nbytes)
        if not kind.itemsize or start % kind.alignment:
            raise ValueError(
                f"{call}: offset {start} is not aligned to the {kind.alignment} bytes of {kind}, "
                f"or its elements have no size"
            )
        if shape is None:
            shape = room // kind.itemsize
        lengths = shape if isinstance(shape, tuple) else (shape,)
        sizes = tuple(as_int(call, "shape", length) for length in lengths)
        count = math.prod(sizes)
        if min(sizes, default=0) < 0 or count * kind.itemsize > room:
            raise ValueError(
                f"{call}: an array of shape {shape} of {kind} at offset {start} does not fit the "
                f"{self.nbytes}-byte mapping"
            )
        view = memoryview(self)[start : start + count * kind.itemsize]
        return np.frombuffer(view, dtype=kind).reshape(sizes)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(1, 0), host memory: a mapping is a CPU view, wherever the memory lies."""
        return HOST

    def __dlpack__(self, **wishes: Any) -> object:
        """A DLPack capsule of the CPU view's bytes, which keeps the mapping alive.

        Parameters and errors are those of :meth:`gdrpy.Array.__dlpack__`.
        """
        return export("Mapping.__dlpack__", self, **wishes)

    def _view(self, device: Device) -> View | None:
        if device != HOST:
            return None
        memory = memoryview(self)
        return View(self.address, HOST, (self.nbytes,), DTYPES["U8"], self.readonly, memory)

    def _copy(self, device: Device, stream: int | None) -> View:  # noqa: ARG002
        return host_copy("Mapping.__dlpack__", device, (self.nbytes,), DTYPES["U8"], self.readinto)

    def flag(self, offset: int = 0, width: int = 4) -> Flag:
        """One aligned word of ``width`` (4 or 8) bytes at ``offset``, for signalling."""
        return Flag(self, offset, width)

    def batch(self) -> Batch:
        """Inside the block writes and stores are not fenced one by one; one fence ends the block.

        Batching affects every thread that uses the mapping.
        """
        return Batch(self)

    def close(self) -> None:
        """Unmap. May be called again. Raises BufferError while views of the mapping are alive."""
        _mapping.Mapping.close(self)  # super() takes longer
        self._travel = None

    def _retire(self, keep: object = None) -> bool:
        self._travel = None
        told: bool = super()._retire(keep)
        return told

    def __copy__(self) -> NoReturn:
        raise TypeError(f"a Mapping cannot be copied or pickled: {HOW_TO_SEND}")

    def __reduce__(self) -> tuple[Any, ...]:
        _ = self.address  # raises if it is closed or the parent's
        if self._travel is None:
            raise TypeError(
                "a Mapping of gdrpy.page_locked() cannot be copied or pickled: its memory cannot "
                "be shared; share host memory, gdrpy.alloc(nbytes, device='cpu')"
            )
        reduce, *parts = self._travel
        found: tuple[Any, ...] = reduce(*parts, self)
        return found

    def __repr__(self) -> str:
        if self.closed:
            return "<Mapping CLOSED>"
        access = "read-only, " if self.readonly else ""
        kind = self.mapping_type.name.lower().replace("_", "-")
        return f"<Mapping of {self.nbytes} bytes, {access}{kind}, {self.backend}>"


class Batch:
    """The block of :meth:`Mapping.batch`."""

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping

    def __enter__(self) -> None:
        self._mapping._begin_batch()

    def __exit__(self, *error: object) -> None:
        self._mapping._end_batch()


#: CUDA's numbers of the conditions for waiting on a flag.
_WAIT_FLAGS = {">=": 0, "==": 1, "&": 2, "nor": 3}


class Flag(_mapping.Flag):
    """One aligned word of a mapping, used for signalling between CPU and GPU.

    The CPU uses :meth:`set`, :meth:`get` and :meth:`wait`. The GPU uses kernels that access the
    word at ``ptr``, or :meth:`stream_wait` and :meth:`stream_write`.
    """

    mapping: Mapping

    def __reduce__(self) -> tuple[Any, ...]:
        return Flag, (self.mapping, self.offset, self.width)

    @property
    def ptr(self) -> int:
        """GPU address of the word. Raises MissingView without the GPU view, Closed, Forked."""
        _ = self.mapping.address  # raises if it is closed or the parent's
        if self.mapping.ptr is None:
            raise MissingView(
                "Flag.ptr: the word has no GPU view: open the region with gpu=True, or use "
                "gdrpy.page_locked() for host memory that the GPU reaches"
            )
        return self.mapping.ptr + self.offset

    def stream_wait(self, stream: Any, value: int, op: str = ">=") -> None:
        """Work queued on ``stream`` from now on waits until the word meets the condition.

        Args:
            stream: A handle as an int or CUstream, None for the default stream, or a stream of
                torch, cupy, numba or cuda.core.
            value: What the word is compared with.
            op: The comparison, as in :meth:`wait`.

        Raises CudaError if the device does not support the condition ('nor').
        """
        if op not in _WAIT_FLAGS:
            raise ValueError(f"op must be '>=', '==', '&' or 'nor', not {op!r}")
        self._stream_call("cuStreamWaitValue", stream, value, _WAIT_FLAGS[op])

    def stream_write(self, stream: Any, value: int) -> None:
        """Queue a store to the word on ``stream``, after the work already queued there.

        Raises ReadOnly if the mapping is read-only.
        """
        if self.mapping.readonly:
            raise ReadOnly(
                "Flag.stream_write: the mapping is read-only; map with readonly=False, from a "
                "writable region: Region.from_fd(..., readonly=False), or one that a broker lets "
                "this user write"
            )
        self._stream_call("cuStreamWriteValue", stream, value, 0)

    def _stream_call(self, name: str, stream: Any, value: Any, flags: int) -> None:
        word = as_int(name, "value", value)
        if not 0 <= word < 1 << 8 * self.width:
            raise ValueError(f"{name}: {word} does not fit {8 * self.width} unsigned bits")
        ptr = self.ptr
        device = self.mapping.device
        assert device is not None
        with cuda.context(device):
            cuda.call(f"{name}{8 * self.width}", cuda.stream_handle(stream), ptr, word, flags)

    def __repr__(self) -> str:
        state = "CLOSED" if self.mapping.closed else f"in {self.mapping!r}"
        return f"<Flag of {self.width} bytes at offset {self.offset} {state}>"
