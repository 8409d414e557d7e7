"""Viewed, the base of regions and pins: their memory, and this process's views of it."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from gdrpy._core import _mapping
from gdrpy._core._mapping import Undo
from gdrpy.common.arguments import as_range
from gdrpy.common.resource import Hold, Resource
from gdrpy.errors import MissingView, ReadOnly
from gdrpy.memory.memory import Memory, settle_all
from gdrpy.memory.view import Flag, Mapping, Travel

if TYPE_CHECKING:
    import numpy as np


#: What uses a GPU view, in the words of an error.
_GPU_USERS = "of the GPU view, such as tensors by DLPack and arenas, or asynchronous copies"


class Viewed(Resource, _mapping.Transfers, _mapping.Buffer):
    """``nbytes`` bytes of memory, with this process's views of them.

    The CPU sees them through :attr:`cpu` and other mappings, GPU ``device`` at :attr:`ptr`. Threads
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

    def _place(self) -> tuple[Viewed, int, int]:
        """Where its bytes lie: in which region or pin, from which byte on, and how many."""
        return self, 0, self.nbytes

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

    def numpy(
        self, dtype: Any = "uint8", shape: int | tuple[int, ...] | None = None, offset: int = 0
    ) -> np.ndarray[Any, Any]:
        """An array over the CPU view: see :meth:`Mapping.numpy`.

        Args:
            dtype: The elements' type.
            shape: The shape; None is one dimension with all that fits.
            offset: The byte at which the first element begins, aligned to the type.
        """
        call = f"{type(self).__name__}.numpy"
        return self._cpu_for(call)._numpy(call, dtype, shape, offset)

    def flag(self, offset: int = 0, width: int = 4) -> Flag:
        """One aligned word of ``width`` (4 or 8) bytes, for signalling."""
        return self._cpu_for(f"{type(self).__name__}.flag").flag(offset, width)

    def _cpu_for(self, call: str) -> Mapping:
        """The CPU view of all bytes; errors name the call."""
        self._check(call)
        try:
            return self.cpu
        except MissingView as error:
            raise MissingView(f"{call}: {str(error).removeprefix('Region.cpu: ')}") from None

    def _flush(self) -> None:
        """Flush earlier stores of the CPU, including those of a batch()."""
        if self._cpu is not None:
            self._cpu.flush()

    def _buffer(self, _formatted: bool, /) -> memoryview:
        """The CPU view's bytes, for ``memoryview(region)``. Raises MissingView, Closed."""
        return memoryview(self.cpu)

    def _idle_mappings(self, call: str = "close", *, lasting: bool = False) -> list[Mapping]:
        """The mappings. Raises BufferError while the memory is in use.

        With ``lasting``, users that need only its GPU addresses do not count.
        """
        mappings = self._mapped()
        views = 0
        for mapping in mappings:
            views += mapping._users
        users = self._memory.busy if lasting else self._memory.users
        if views or users or self._running:
            counts = {
                "of the CPU view, such as numpy arrays and memoryviews": views,
                "asynchronous or on the GPU" if lasting else _GPU_USERS: users,
                "by DMA": self._running,
            }
            told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
            remedy = "delete the arrays made from it first"
            if self._memory.sent:
                remedy += (
                    f", and wait until the other processes have dropped the tensors that this one "
                    f"has sent ({self._memory.sent}): discard() of install_reducers() drops those "
                    f"that were not received yet"
                )
            raise BufferError(
                f"{type(self).__name__}.{call}: views or running copies still use the memory "
                f"({told}); {remedy}"
            )
        return mappings

    def close(self) -> None:
        """Release everything. May be called again, and does nothing in a forked child."""
        if not self.closed and not self._forked():
            settle_all()
        super().close()

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
