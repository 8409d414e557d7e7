"""The node ``/dev/gdrdrv``, kept open for what is pinned through it, and its events.

Served by this project's module, or by NVIDIA's gdrdrv, which has none of the features. Source of
the calls: driver/uapi/gdrdrv.h.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from pathlib import Path
from typing import Any, NamedTuple

from gdrpy._core._mapping import Undo
from gdrpy._core.calls import call_failure, ffi, lib, text
from gdrpy.common.resource import Owner
from gdrpy.errors import BackendUnavailable, Error, PermissionDenied

PATH = Path(text(lib.GDRDRV_NODE))


class PinEvent(NamedTuple):
    """A revocation of the pin of a handle; or that ``lost`` of them found no room."""

    handle: int
    lost: int


class Node(Owner):
    """An open node, which owns what is pinned through it.

    Raises BackendUnavailable where there is no module, or one of another ABI; PermissionDenied.
    """

    def __init__(self) -> None:
        #: As the C core takes it, valid while this is held.
        self.struct: Any = ffi.new("struct core_node *")
        undo = Undo()
        error = -lib.core_node_open(self.struct, os.fsencode(PATH))
        if error:
            raise _open_error(error)
        undo.callback(lib.core_node_close, self.struct)
        super().__init__(undo)

    @property
    def fd(self) -> int:
        """The descriptor, which polls readable while an event waits."""
        self._check("using /dev/gdrdrv")
        return int(self.struct.fd)

    @property
    def full(self) -> bool:
        """Whether this is the project's module, with everything that it has beyond NVIDIA's."""
        return bool(lib.core_node_full(self.struct))

    def next_event(self) -> PinEvent | None:
        """The next event that waits, None if none does."""
        event = ffi.new("struct gdrdrv_event *")
        self._check("reading events")
        got = lib.core_node_next_event(self.struct, event)
        if got < 0:
            raise call_failure(-got, "reading events of /dev/gdrdrv")
        return PinEvent(event.handle, event.lost) if got else None


def _open_error(error: int) -> Error:
    why = ffi.new("struct core_status *")
    lib.core_node_explain(error, why)
    message = f"{text(why.reason)}: {text(why.remedy)}"
    if error in (errno.EACCES, errno.EPERM):
        return PermissionDenied(error, message)
    return BackendUnavailable(message)


class _OwnNode:
    """The node that this process pins its regions through: open while there is one of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._node: weakref.ref[Node] | None = None

    def get(self) -> Node:
        with self._lock:
            node = self._node() if self._node else None
            if node is None:
                node = Node()
                self._node = weakref.ref(node)
            return node

    def after_fork(self) -> None:
        """In a child: the parent's node is of no use, and a thread now gone may hold the lock."""
        self._lock = threading.Lock()
        self._node = None


own_node = _OwnNode()
os.register_at_fork(after_in_child=own_node.after_fork)
