"""An allocation: physical GPU memory, held by its file descriptor."""

from __future__ import annotations

from gdrpy._fd import private_duplicate
from gdrpy._resource import Owner, Undo
from gdrpy.errors import MissingView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdrpy._core._mapping import Descriptor


class Allocation(Owner):
    """Physical GPU memory, its file descriptor and, if asked for, its GPU address.

    Made by :mod:`gdrpy.vmm` and, where no CUDA is wanted, :meth:`keep_fd`. Its ``size`` is in
    bytes, a multiple of the granularity; ``ptr`` is None without the GPU view, which is of
    ``device``. ``home`` is the device that the memory lies on, None where this process does not
    know it. It keeps ``source`` alive. ``fabric`` is its fabric handle, if it was made to have one,
    or came by one: then it has no descriptor.

    ``close()`` takes the GPU view away at once; that of a dropped one stays until the GPU work that
    was queued by then is done.
    """

    source: object = None

    def __init__(
        self,
        undo: Undo,
        fd: Descriptor | None,
        size: int,
        device: int | None,
        ptr: int | None,
        fabric: bytes | None = None,
        *,
        home: int | None = None,
    ) -> None:
        super().__init__(undo)
        self._fd = fd
        self.device = device
        self.home = home
        self.size = size
        self.ptr = ptr
        self.fabric = fabric

    @classmethod
    def keep_fd(cls, fd: int, size: int) -> Allocation:
        """Keep an exported allocation alive by its descriptor alone. ``fd`` stays the caller's."""
        with Undo() as undo:
            own = undo.keep(private_duplicate(fd))
            return cls(undo.pop_all(), own, size, None, None)

    def _drop(self) -> None:
        if self.ptr is None:
            self._give_back()
            return
        from gdrpy import _reclaim

        assert self._undo is not None
        _reclaim.give_back(self.devices, self._undo, self.source)

    @property
    def devices(self) -> tuple[int, ...]:
        """Those that reach it at ``ptr``: the one that it lies on, and last the one of the view."""
        known = [one for one in (self.home, self.device) if one is not None]
        return tuple(dict.fromkeys(known))

    @property
    def location(self) -> str:
        """On which GPU it lies, in words."""
        if self.home is None:
            return "an unknown GPU"
        from gdrpy import cuda

        return cuda.location(self.home)

    @property
    def fd(self) -> int:
        """The allocation's own descriptor, closed with it: duplicate it to keep it.

        Raises MissingView for memory that came by a fabric handle.
        """
        self._check("Allocation.fd")
        if self._fd is None:
            raise MissingView(
                "memory that came by a fabric handle has no file descriptor, and no CPU view: hand "
                "on the handle, Region.export_fabric()"
            )
        return self._fd.fileno()
