"""The node ``/dev/gdrdrv``: one method a call, its errors as exceptions.

Served by this project's module, or by NVIDIA's gdrdrv, which has none of the features. Source of
the calls: driver/uapi/gdrdrv.h.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

from gdrpy._resource import Owner, Undo
from gdrpy.backends.fdmemory import ffi, lib
from gdrpy.backends.memory import status_error
from gdrpy.errors import BackendUnavailable, Error, InvalidHandle, OutOfMemory, PermissionDenied
from gdrpy.mappingtype import MappingType

PATH = Path(ffi.string(lib.GDRDRV_NODE).decode())
_MODULE_VERSION = Path("/sys/module/gdrdrv/version")
_LOAD = "load the module: sudo ./insmod.sh"


@dataclass(frozen=True)
class PinnedPages:
    """The GPU pages that a pin holds: address and size in bytes.

    ``mapping_type`` is None while nothing is mapped; ``revoked`` tells that the memory was freed.
    """

    va: int
    nbytes: int
    mapping_type: MappingType | None
    revoked: bool


@dataclass(frozen=True)
class Event:
    """A revocation of the pin of a handle; or that ``lost`` of them found no room."""

    handle: int
    lost: int


class Node(Owner):
    """An open node, which owns what is pinned through it.

    Raises BackendUnavailable where there is no module, or one of another ABI; PermissionDenied.
    """

    def __init__(self) -> None:
        self._node = ffi.new("struct gdr_node *")
        undo = Undo()
        with _fork_lock:
            error = -lib.gdr_node_open(self._node, os.fsencode(PATH))
            if error:
                raise _open_error(error)
            undo.callback(lib.gdr_node_close, self._node)
            super().__init__(undo)
            _nodes.add(self)

    @property
    def fd(self) -> int:
        """The descriptor, which polls readable while an event waits."""
        self._check("using /dev/gdrdrv")
        return int(self._node.fd)

    @property
    def full(self) -> bool:
        """Whether this is the project's module, with everything that it has beyond NVIDIA's."""
        wanted = lib.GDRDRV_FEATURE_PIN_V3 | lib.GDRDRV_FEATURE_SHARE | lib.GDRDRV_FEATURE_EVENTS
        return bool(self._node.features & wanted == wanted)

    @property
    def persistent(self) -> bool:
        """Whether pins that say nothing keep the memory when its owner frees it."""
        return bool(self._node.persistent)

    @property
    def origin(self) -> str:
        """Whose module it is, and its versions, in words."""
        abi = f"{self._node.version >> 16}.{self._node.version & 0xFFFF}"
        whose = "gdrpy's" if self.full else "NVIDIA's"
        try:
            version = _MODULE_VERSION.read_text().strip()
        except OSError:
            version = "unknown"
        return f"{whose} gdrdrv, version {version}, ABI {abi}"

    def pin(self, ptr: int, nbytes: int, flags: int = 0) -> int:
        """Pin whole GPU pages around a range; its handle. ``flags`` are GDRDRV_PIN_V3_...

        Raises InvalidHandle, OutOfMemory, BackendUnavailable, DriverError.
        """
        handle = ffi.new("uint64_t *")
        self._check("pinning")
        error = -lib.gdr_node_pin(self._node, ptr, nbytes, flags, handle)
        if error:
            raise _pin_error(error, f"pinning {nbytes} bytes at {ptr:#x} by /dev/gdrdrv")
        return int(handle[0])

    def unpin(self, handle: int) -> None:
        """End a pin; its mappings show nothing any more."""
        self._check("unpinning")
        error = -lib.gdr_node_unpin(self._node, handle)
        if error:
            raise status_error(error, f"unpinning handle {handle}")

    def info(self, handle: int) -> PinnedPages:
        """What is pinned."""
        info = ffi.new("struct gdr_pin_info *")
        self._check("asking about a pin")
        error = -lib.gdr_node_info(self._node, handle, info)
        if error:
            raise status_error(error, f"asking about handle {handle}")
        kind = MappingType(info.mapping_type) if info.mapping_type else None
        return PinnedPages(info.va, info.nbytes, kind, info.revoked)

    def share(self, handle: int, readonly: bool = False) -> int:
        """A new descriptor, closed on exec, by which any process may map the pin."""
        self._check("sharing a pin")
        fd = int(lib.gdr_node_share(self._node, handle, readonly))
        if fd < 0:
            raise status_error(-fd, f"sharing handle {handle}")
        return fd

    def next_event(self) -> Event | None:
        """The next event that waits, None if none does."""
        event = ffi.new("struct gdrdrv_event *")
        self._check("reading events")
        got = lib.gdr_node_next_event(self._node, event)
        if got < 0:
            raise status_error(-got, "reading events of /dev/gdrdrv")
        return Event(event.handle, event.lost) if got else None


_nodes: weakref.WeakSet[Node] = weakref.WeakSet()
#: Held while a node is opened: no child is to have one that it does not know of.
_fork_lock = threading.Lock()


def _close_in_child() -> None:
    """A child that kept its copy would keep what the parent has pinned."""
    _fork_lock.release()
    for node in list(_nodes):
        node._give_back()


os.register_at_fork(
    before=_fork_lock.acquire,
    after_in_parent=_fork_lock.release,
    after_in_child=_close_in_child,
)


def _open_error(error: int) -> Error:
    if error in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
        return BackendUnavailable(f"no kernel module serves {PATH}: {_LOAD}")
    if error in (errno.EACCES, errno.EPERM):
        return PermissionDenied(
            error,
            f"no permission to open {PATH} for reading and writing: ask for its group or mode",
        )
    if error in (errno.EPROTO, errno.ENOTTY, errno.EINVAL):
        return BackendUnavailable(f"{PATH} speaks another ABI than gdrdrv 2: {_LOAD}")
    return status_error(error, f"opening {PATH}")


def _pin_error(error: int, what: str) -> Error:
    if error == errno.EINVAL:
        return InvalidHandle(
            f"{what}: the NVIDIA driver finds no GPU memory of this process there: pass a pointer "
            f"from cuMemAlloc, cudaMalloc or gdrpy.alloc of this process"
        )
    if error == errno.EDQUOT:
        return OutOfMemory(
            f"{what}: more than a user may have pinned: close pins, or have the administrator "
            f"raise the module's max_pinned_mib"
        )
    if error == errno.EOPNOTSUPP:
        return BackendUnavailable(f"{what}: the module or the NVIDIA driver does not support it")
    return status_error(error, what)
