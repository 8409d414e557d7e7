"""What regions and pins have in common: memory that is mapped for the CPU, any number of times."""

from __future__ import annotations

from abc import abstractmethod

from gdrpy.common.arguments import as_range
from gdrpy.common.resource import Resource, Undo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from weakref import WeakSet

    from gdrpy.memory.memory import Memory
    from gdrpy.memory.view import Mapping, Origin


class Mappable(Resource):
    """``nbytes`` bytes of GPU memory, and the CPU mappings of them."""

    _taken: Memory | None = None
    #: The mapping that it keeps itself, and those that it has given away.
    _cpu: Mapping | None = None
    _mappings: WeakSet[Mapping] | None = None
    #: Whether this process may only read it: then each of its views is read-only.
    readonly: bool = False

    def __init__(self, nbytes: int, ptr: int | None, device: int | None) -> None:
        super().__init__()
        self.nbytes = nbytes
        self.device = device
        self._ptr = ptr

    @abstractmethod
    def _memory(self) -> Memory:
        """The memory as a backend has taken it in; called with the lock held."""

    @abstractmethod
    def _origin(self, start: int) -> Origin:
        """How a mapping from byte ``start`` on travels to another process."""

    def _map(self, start: int, size: int, readonly: bool) -> Mapping:
        """A mapping of a range that lies inside; called with the lock held."""
        ptr = None if self._ptr is None else self._ptr + start
        mapping = self._memory().map(start, size, readonly, ptr, self.device)
        mapping._origin = self._origin(start)
        return mapping

    def map(self, offset: int = 0, nbytes: int | None = None, *, readonly: bool = False) -> Mapping:
        """Map ``nbytes`` bytes (None: all the rest) from any byte ``offset`` on for the CPU.

        What is itself read-only is always mapped so.

        Raises ValueError outside the memory, OutOfMemory when the BAR is full.
        """
        call = f"{type(self).__name__}.map"
        start, size = as_range(call, offset, nbytes, self.nbytes)
        if size == 0:
            raise ValueError(f"{call}: a mapping of 0 bytes at offset {start}")
        with self._lock:
            self._check(call)
            mapping = self._map(start, size, bool(readonly) or self.readonly)
            if self._mappings is None:
                from weakref import WeakSet

                self._mappings = WeakSet()
            self._mappings.add(mapping)
        return mapping

    def _mapped(self) -> list[Mapping]:
        """Its mappings, open or closed."""
        own = () if self._cpu is None else (self._cpu,)
        return [*own, *(self._mappings or ())]

    @property
    def revoked(self) -> bool:
        """Whether the GPU memory was freed under it by its owner, which costs a system call.

        Its mappings raise Revoked from then on; views made before find what the pin was asked to
        show. Only memory that the gdrdrv backend maps can be revoked.
        """
        self._check(f"{type(self).__name__}.revoked")
        with self._lock:
            found = self._taken is not None and self._taken.revoked
            if found:
                for mapping in self._mapped():
                    mapping._revoke()
        return found

    def _refuse_if_busy(self) -> None:
        """Raise BufferError while somebody could still use the memory."""
        users = self._copies()
        for mapping in self._mapped():
            users += mapping._users
        if users:
            raise BufferError(
                f"{type(self).__name__}.close: {users} views or running copies still use the "
                f"memory; delete the numpy arrays and memoryviews made from it first"
            )

    def _copies(self) -> int:
        """How many copies by DMA run, and others that use the memory by its GPU address."""
        return 0

    def _release(self) -> None:
        self._refuse_if_busy()
        with Undo() as undo:
            self._give_back(undo)
            try:
                for mapping in self._mapped():
                    mapping.close()
            except BufferError:  # a view made since: nothing is given back under it
                undo.pop_all()
                raise

    def _give_back(self, undo: Undo) -> None:
        """Put on ``undo`` what closes the rest: the last one put there is closed first."""
