"""How memory travels to another process: by multiprocessing, which sends its file descriptor.

Only multiprocessing's own pickler can do so. It is told when it is imported, before or after this.
"""

from __future__ import annotations

import os
import sys
from errno import EACCES

from gdrpy._core._mapping import Descriptor, lend_private, take_back_private
from gdrpy._resource import HOW_TO_SEND, Owner, Undo
from gdrpy.errors import BackendUnavailable, Gone, MissingView, PermissionDenied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, NoReturn

    from gdrpy.allocation import Allocation
    from gdrpy.backends.corememory import CoreMemory
    from gdrpy.backends.memfd import Memfd
    from gdrpy.broker.client.region import BrokerRegion
    from gdrpy.mapping import Mapping
    from gdrpy.region import Region

_REDUCTION = "multiprocessing.reduction"
#: What errors of a receiver begin with.
_CALL = "receiving a Region"


class Parcel:
    """What holds memory, to be sent by its descriptor.

    One region and its mappings have one, so that what is pickled in one go has one descriptor.
    """

    __slots__ = ("holder",)

    def __init__(self, holder: Allocation | CoreMemory | Memfd) -> None:
        self.holder = holder

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a Region or Pin cannot be copied or pickled: {HOW_TO_SEND}")


class _Received(Owner):
    """A descriptor that has arrived, closed when what it brought has been opened, or failed to."""

    def __init__(self, fd: int) -> None:
        undo = Undo()
        self._fd = undo.keep(Descriptor(fd))
        super().__init__(undo)

    @property
    def fd(self) -> int:
        """Its number, which stays its."""
        return self._fd.fileno()


def _send(parcel: Parcel) -> tuple[Any, ...]:
    from multiprocessing.context import get_spawning_popen
    from multiprocessing.reduction import DupFd

    try:
        fd = parcel.holder.fd
    except (BackendUnavailable, MissingView) as error:
        raise TypeError(f"multiprocessing cannot send this memory: {error}") from error
    if get_spawning_popen() is not None:  # the program inherits it, maybe by a fork
        lend_private(fd)
    return _receive, (DupFd(fd),)


def _receive(sent: Any) -> _Received:
    from multiprocessing import AuthenticationError

    try:
        return _Received(sent.detach())
    except AuthenticationError:
        raise PermissionDenied(
            EACCES,
            f"{_CALL}: the process that sent it has another authkey: give both the same one, by "
            f"multiprocessing.current_process().authkey = b'...', before the first is sent",
        ) from None
    except (OSError, EOFError) as error:
        raise Gone(
            f"{_CALL}: the process that sent it has ended, or somebody has taken it already "
            f"({error!r}): keep the sender until the region has arrived, and send it to each "
            f"receiver by itself"
        ) from error


def open_region(
    parcel: Parcel | _Received, nbytes: int | None, gpu: bool, cpu: bool, readonly: bool
) -> Region:
    """The region in a parcel, with these views; all of its bytes if ``nbytes`` is None."""
    from gdrpy.region import Region

    if isinstance(parcel, Parcel):  # of copy.copy()
        parcel.__reduce__()
    return Region._open(
        _CALL,
        parcel.fd,
        nbytes,
        gpu=gpu,
        cpu=cpu,
        readonly=readonly,
        backend=None,
    )


def map_region(region: Region, offset: int, nbytes: int, readonly: bool) -> Mapping:
    """A mapping of a region, as its sender had it."""
    return region.map(offset, nbytes, readonly=readonly)


def map_parcel(
    parcel: Parcel | _Received | BrokerRegion, gpu: bool, offset: int, nbytes: int, readonly: bool
) -> Mapping:
    """A mapping of a range in a parcel, with a region of its own behind it."""
    region = (
        open_region(parcel, None, gpu, False, readonly)
        if isinstance(parcel, Parcel | _Received)
        else parcel
    )
    return map_region(region, offset, nbytes, readonly)


class _Loader:
    """Loads multiprocessing's pickler as ``loader`` does, and tells it of parcels."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _register()


class _Finder:
    """Finds that one module as the other finders do, until it has been loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _REDUCTION:
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
                    return spec
        return None


_finder = _Finder()


def _register() -> None:
    from multiprocessing.reduction import ForkingPickler

    ForkingPickler.register(Parcel, _send)
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


# Python asks for this ahead of a fork that goes on, and not of one that starts a program.
os.register_at_fork(before=take_back_private)

sys.meta_path.insert(0, _finder)
if _REDUCTION in sys.modules:
    _register()
