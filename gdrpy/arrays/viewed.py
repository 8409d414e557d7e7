"""Viewed, the base of regions and pins, and arrays in them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from gdrpy import cuda
from gdrpy._core import _mapping
from gdrpy._core._mapping import Undo
from gdrpy.arrays.elements import Elements, as_bytes, elements_of
from gdrpy.arrays.interop import DeviceArray
from gdrpy.common import dlpack
from gdrpy.common.arguments import as_int, as_range
from gdrpy.common.dlpack import CUDA, HOST, View
from gdrpy.common.dtypes import as_dtype
from gdrpy.common.resource import Closing, Hold, Resource
from gdrpy.copies import dma
from gdrpy.copies.tuning import limits
from gdrpy.errors import Closed, MissingView, ReadOnly
from gdrpy.memory import vmm
from gdrpy.memory.memory import Memory, settle
from gdrpy.memory.page_locked_pool import borrow
from gdrpy.memory.view import Flag, Mapping, Travel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

#: The limit of numpy and of DLPack consumers.
MAX_DIMENSIONS = 64
#: From this size in bytes on, a fill by the GPU is quicker, despite its launch cost.
_DMA_FILL_MIN = 64 * 1024
#: Bytes that a fill through the mapping stores at a time.
_FILL_CHUNK = 256 * 1024
#: Bytes copied through the host at a time, between GPUs that do not reach each other.
_COPY_CHUNK = 16 << 20


class Viewed(Resource, _mapping.Transfers, _mapping.Buffer):
    """``nbytes`` bytes of memory, with this process's views of them.

    The CPU sees them through :attr:`cpu` and other mappings, GPU ``device`` at :attr:`ptr`. Copies
    use the faster view. A copy is complete when its call returns, and waits for no kernel. Threads
    may share it.
    """

    #: Whether an object pickled by multiprocessing arrives with the same class.
    _is_sent = True
    #: The mapping of all bytes, and the other mappings.
    _cpu: Mapping | None = None
    _mappings: WeakSet[Mapping] | None = None

    def __init__(self, memory: Memory, nbytes: int, ptr: int | None, readonly: bool) -> None:
        """``ptr`` is the GPU address that copies and other libraries may use, or None.

        The object takes the memory over. ``readonly`` makes each of its views read-only.
        """
        super().__init__(memory._mutex)
        self.nbytes = nbytes
        self.device = memory.device
        self.readonly = readonly
        self._memory = memory
        self._ptr = ptr

    @property
    def location(self) -> str:
        """Where the memory lies, in words."""
        return self._memory.location

    @property
    @abstractmethod
    def ptr(self) -> int:
        """The GPU address of the first byte."""

    @property
    @abstractmethod
    def cpu(self) -> Mapping:
        """The CPU view of all bytes."""

    @abstractmethod
    def _travel(self, start: int) -> Travel:
        """A function that pickles a mapping from byte ``start`` on."""

    def _map(self, start: int, size: int, readonly: bool) -> Mapping:
        """A mapping of a range inside; called with the lock held."""
        mapping = self._memory.map(start, size, readonly)
        mapping._travel = self._travel(start)
        return mapping

    def map(self, offset: int = 0, nbytes: int | None = None, *, readonly: bool = False) -> Mapping:
        """Map a range of the memory for the CPU.

        Args:
            offset: Where the range begins, at any byte.
            nbytes: Its length; None is all the rest.
            readonly: Whether stores are refused. Read-only memory is always mapped read-only.

        Raises ValueError outside the memory, OutOfMemory if the BAR is full.
        """
        call = f"{type(self).__name__}.map"
        start, size = as_range(call, offset, nbytes, self.nbytes)
        if size == 0:
            raise ValueError(f"{call}: a mapping of 0 bytes at offset {start}")
        with self._lock:
            self._check(call)
            mapping = self._map(start, size, bool(readonly) or self.readonly)
            if self._mappings is None:
                self._mappings = WeakSet()
            self._mappings.add(mapping)
        return mapping

    def _mapped(self) -> list[Mapping]:
        """All mappings, open or closed."""
        own = () if self._cpu is None else (self._cpu,)
        return [*own, *(self._mappings or ())]

    @property
    def revoked(self) -> bool:
        """Whether the owner of the GPU memory freed it. Costs a system call.

        If so, the mappings raise Revoked from then on; existing views read zeros or raise SIGBUS,
        as :func:`gdrpy.pin` was told. Only memory that the gdrdrv backend maps can be revoked.
        """
        self._check(f"{type(self).__name__}.revoked")
        with self._lock:
            found = self._memory.revoked
            if found:
                for mapping in self._mapped():
                    mapping._revoke()
        return found

    @property
    def _has_gpu_view(self) -> bool:
        self._check(f"{type(self).__name__}.ptr")
        return self._ptr is not None

    @property
    def _has_cpu_view(self) -> bool:
        self._check(f"{type(self).__name__}.cpu")
        return self._cpu is not None

    def _check_writable(self, call: str) -> None:
        """Raise ReadOnly if nothing may be written."""
        self._check(call)
        if self.readonly:
            what = type(self).__name__.lower()
            raise ReadOnly(f"{call}: the {what} is read-only; open it with readonly=False")

    def _prepare(self, call: str, writing: bool) -> None:
        """Set up the C core's copies, or raise if a copy is not possible."""
        with self._lock:
            self._check(call)
            if writing:
                self._check_writable(call)
            engine = device = None
            if self._ptr is not None:
                device = self.device
                assert device is not None
                engine = dma.engine(device)
            self._arm(self._cpu, engine, self._ptr or 0, self.nbytes, writing, limits(device))

    def _check_gpu_may_write(self, call: str) -> None:
        """Raise ReadOnly if nothing may be written.

        Earlier stores of the CPU arrive before what the GPU writes from now on.
        """
        self._check_writable(call)
        if self._cpu is not None:
            self._cpu.flush()  # also flushes the stores of a batch()

    def fill(self, value: int, offset: int = 0, nbytes: int | None = None) -> None:
        """Set bytes to one value, by CPU stores, or from 64 KiB on by the GPU.

        Args:
            value: The value of each byte, 0 to 255.
            offset: The first byte.
            nbytes: The number of bytes; None is all the rest.

        Raises ValueError, ReadOnly, Closed.
        """
        call = f"{type(self).__name__}.fill"
        byte = as_int(call, "value", value)
        if not 0 <= byte <= 255:
            raise ValueError(f"{call}: value must be a byte, 0 to 255, and is {byte}")
        start, size = as_range(call, offset, nbytes, self.nbytes)
        self._check_gpu_may_write(call)
        if self._ptr is not None and (self._cpu is None or size >= _DMA_FILL_MIN):
            assert self.device is not None
            with Hold(self._memory):
                if size:
                    dma.fill(self.device, self._ptr + start, byte, size)
            return
        chunk = memoryview(bytes((byte,)) * min(size, _FILL_CHUNK))
        for done in range(0, size, _FILL_CHUNK):
            self.cpu.write(chunk[: size - done], start + done)

    def _put(self, call: str, elements: Elements, offset: int) -> None:
        """Copy an array's elements to ``offset``, packed in C order. Complete on return.

        Raises ReadOnly, Closed.
        """
        source = elements.data
        if not isinstance(source, DeviceArray):
            self.write(as_bytes(source), offset)
            return
        self._check_gpu_may_write(call)
        if not source.nbytes:
            return
        if self._ptr is not None and source.device in self._memory.devices:
            with Hold(self._memory):
                dma.copy(source.device, self._ptr + offset, source.address, source.nbytes)
            return
        staging = borrow(min(_COPY_CHUNK, source.nbytes), source.device)
        for start in range(0, source.nbytes, _COPY_CHUNK):
            piece = staging[: source.nbytes - start]
            dma.copy(source.device, piece.ctypes.data, source.address + start, piece.nbytes)
            self.write(piece, offset + start)

    def numpy(
        self,
        dtype: DTypeLike = "uint8",
        shape: int | tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> np.ndarray[Any, Any]:
        """An array over the CPU view: see :meth:`Mapping.numpy`.

        Args:
            dtype: The elements' type.
            shape: The shape; None is one dimension with all that fits.
            offset: The byte at which the first element begins, aligned to the type.
        """
        return self.cpu.numpy(dtype, shape, offset)

    def flag(self, offset: int = 0, width: int = 4) -> Flag:
        """One aligned word of ``width`` (4 or 8) bytes, for signalling."""
        return self.cpu.flag(offset, width)

    def array(self, shape: int | tuple[int, ...], dtype: Any, offset: int = 0) -> Array:
        """A part of the memory as an array in C order.

        Args:
            shape: The shape.
            dtype: The elements' type: numpy's or safetensors' ("BF16").
            offset: The byte at which the first element begins.

        Raises ValueError if they do not fit, TypeError.
        """
        self._check(f"{type(self).__name__}.array")
        return Array(self, shape, dtype, offset)

    def _as_array(self) -> Array:
        """All bytes as an Array."""
        return self.array(self.nbytes, "U8")

    def _buffer(self) -> memoryview:
        """The CPU view's bytes, for ``memoryview(region)``. Raises MissingView, Closed."""
        return memoryview(self.cpu)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The CPU view as bytes (version 3): see :class:`gdrpy.Array`."""
        return self._as_array().__array_interface__

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The GPU view as bytes (version 3): see :class:`gdrpy.Array`."""
        return self._as_array().__cuda_array_interface__

    def __dlpack__(self, **wishes: Any) -> object:
        """All bytes: see :meth:`Array.__dlpack__`."""
        return self._as_array().__dlpack__(**wishes)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where :meth:`__dlpack__` shows it: (2, device) on a GPU, (1, 0) in host memory."""
        return self._as_array().__dlpack_device__()

    def mirror(
        self,
        load: bool = False,
        dtype: DTypeLike = "uint8",
        shape: int | tuple[int, ...] | None = None,
    ) -> AbstractContextManager[np.ndarray[Any, Any]]:
        """A writable array in host memory, whose bytes go into the region at the block's end.

        Args:
            load: Whether to copy the region's bytes in first. Otherwise the initial values are
                undefined: fill the whole array.
            dtype: The elements' type.
            shape: The shape, from byte 0 on; None is the whole region.

        The array's memory is page-locked if the region has a GPU view. When its last array is gone,
        the memory is kept for the next mirror, or freed beyond 256 MiB. Nothing is copied back if
        the block raises. A read-only region has a read-only mirror.
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
        part = Array(self, self.nbytes // kind.nbytes if shape is None else shape, kind)
        memory = self._host_memory(part.nbytes)
        if load:
            self.readinto(memory, 0)
        array = memory.view(array_kind).reshape(part.shape)
        writable = not self.readonly
        array.flags.writeable = writable
        yield array
        if writable:
            self.write(memory)

    def _host_memory(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Host memory with undefined contents, page-locked if there is a GPU view.

        Page-locked memory is reused when its last array is gone. Raises OutOfMemory, CudaError.
        """
        import numpy as np

        if not nbytes or not self._has_gpu_view:
            return np.empty(nbytes, np.uint8)
        assert self.device is not None
        return borrow(nbytes, self.device)

    def _idle_mappings(self) -> list[Mapping]:
        """The mappings. Raises BufferError while the memory is in use."""
        for one in settle:
            one()
        users = self._running + self._memory.users
        mappings = self._mapped()
        for mapping in mappings:
            users += mapping._users
        if users:
            raise BufferError(
                f"{type(self).__name__}.close: {users} views or running copies still use the "
                f"memory; delete the numpy arrays and memoryviews made from it first"
            )
        return mappings

    def _release(self) -> None:
        mappings = self._idle_mappings()
        self._disarm()
        try:
            for mapping in mappings:
                mapping.close()
        except BufferError:  # a view was made meanwhile: release nothing
            raise
        except BaseException:
            with Undo() as undo:
                undo.keep(self._memory)
                raise
        self._memory.close()


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
    """

    #: Kept for from_tensor() until it is closed: the tensor, and the Pin, which is closed too.
    _tensor: object = None
    _pin: Viewed | None = None

    def __init__(
        self, region: Viewed, shape: Any, dtype: Any, offset: Any = 0, readonly: bool = False
    ) -> None:
        call = f"{type(region).__name__}.array"
        self._kind = as_dtype(call, dtype)
        self.region = region
        self.dtype = self._kind.name
        self.shape = as_shape(call, shape)
        self.nbytes = math.prod(self.shape) * self._kind.nbytes
        self.offset, _ = as_range(call, offset, self.nbytes, region.nbytes)
        self._readonly = readonly
        self._closed = False

    @classmethod
    def of_tensor(cls, region: Viewed, tensor: DeviceArray, offset: int, owned: bool) -> Self:
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
        array = self.region.cpu.numpy(self._kind.numpy("Array.numpy"), self.shape, self.offset)
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
                f"{call}: the array's dtype is {kind.name}, and this Array's {self.dtype}"
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

    def _buffer(self) -> memoryview:
        """The CPU view, for ``memoryview(array)`` and ``numpy.asarray(array)``.

        Raises BufferError for element types without a buffer format, and as :meth:`numpy`.
        """
        if not self._kind.native:
            raise BufferError(self._unspoken("a buffer"))
        return self.numpy().data

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
            owner = Hold(region._memory)
            return View(self.ptr, device, self.shape, self._kind, self.readonly, owner)
        if device == HOST and region._has_cpu_view:
            cpu = region.cpu
            return View(
                cpu.address + self.offset,
                device,
                self.shape,
                self._kind,
                self._readonly or cpu.readonly,
                memoryview(cpu),
            )
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
