"""Viewed, what regions and pins have in common: this process's views, and copies."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from msgspec.structs import astuple

from gdrpy._core import _mapping
from gdrpy._core._mapping import Undo
from gdrpy.arrays.elements import Elements, as_bytes, readable, refuse_others
from gdrpy.arrays.interop import DeviceArray, packed_array
from gdrpy.common.arguments import as_int, as_range
from gdrpy.common.resource import Hold, Resource
from gdrpy.copies import dma
from gdrpy.copies.tuning import limits
from gdrpy.errors import ReadOnly
from gdrpy.memory.memory import Memory, settle
from gdrpy.memory.page_locked import borrow
from gdrpy.memory.view import Flag, Mapping, Travel

if TYPE_CHECKING:
    import numpy as np

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
            self._arm(
                self._cpu, engine, self._ptr or 0, self.nbytes, writing, astuple(limits(device))
            )

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
            raise ValueError(f"{call}: value must be a byte, 0 to 255, not {byte}")
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

    def _get(self, call: str, target: DeviceArray, offset: int) -> None:
        """Fill a GPU array from ``offset`` on. Complete on return. Raises ReadOnly, Closed."""
        self._check(call)
        if target.readonly:
            raise ReadOnly(f"{call}: the library that made the array made it read-only")
        if not target.nbytes:
            return
        if self._ptr is not None and target.device in self._memory.devices:
            if self._cpu is not None:
                self._cpu.flush()
            with Hold(self._memory):
                dma.copy(target.device, target.address, self._ptr + offset, target.nbytes)
            return
        staging = borrow(min(_COPY_CHUNK, target.nbytes), target.device)
        for start in range(0, target.nbytes, _COPY_CHUNK):
            piece = staging[: target.nbytes - start]
            self.readinto(piece, offset + start)
            dma.copy(target.device, target.address + start, piece.ctypes.data, piece.nbytes)

    def _copy_array(
        self, call: str, array: Any, offset: int, via: str | None, to_write: bool
    ) -> int | None:
        """Copy a GPU array, which the C core cannot, to or from ``offset``; returns its bytes.

        None for any other object, which the C core then copies or refuses.
        """
        refuse_others(call, array)
        found = packed_array(call, readable(array) if to_write else array)
        if found is None:
            return None
        if via == "mapping":
            raise ValueError(
                f"{call}: via='mapping' copies host memory, and this {type(array).__name__} is on "
                f"a GPU, which copies it: leave via out"
            )
        start, size = as_range(call, offset, found.nbytes, self.nbytes)
        if to_write:
            self._put(call, Elements(found.dtype, found.shape, found), start)
        else:
            self._get(call, found, start)
        return size

    def numpy(
        self, dtype: Any = "uint8", shape: int | tuple[int, ...] | None = None, offset: int = 0
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

    def _buffer(self) -> memoryview:
        """The CPU view's bytes, for ``memoryview(region)``. Raises MissingView, Closed."""
        return memoryview(self.cpu)

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
                f"memory ({self._told_users(mappings)}); delete the arrays made from it first"
            )
        return mappings

    def _told_users(self, mappings: list[Mapping]) -> str:
        """What uses the memory, in words."""
        counts = {
            "of the CPU view, such as numpy arrays and memoryviews": sum(
                mapping._users for mapping in mappings
            ),
            "of the GPU view, such as tensors by DLPack and arenas": self._memory.users,
            "by DMA": self._running,
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)

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

    def _release_with_users(self) -> bool:
        told: list[int] = [self._running + self._memory.users]
        with Undo() as undo:
            # The memory is released when its last hold has ended.
            undo.callback(Hold(self._memory).end)
            undo.callback(self._memory.close)
            for mapping in self._mapped():
                undo.checked(told.append, mapping._retire, Hold(self._memory))
            self._disarm()
            self._keep(Hold(self._memory))
        return any(told)
