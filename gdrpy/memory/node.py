"""The node ``/dev/gdrdrv``, kept open for the pins made through it, and its events.

This project's module serves it, or NVIDIA's gdrdrv, which has none of the extra features. Source of
the calls: driver/uapi/gdrdrv.h.
"""

import errno
import os
import threading
import weakref
from typing import Any, NamedTuple

from gdrpy._core._mapping import Undo
from gdrpy._core.calls import call_failure, ffi, lib, text
from gdrpy.common.resource import Owner
from gdrpy.errors import BackendUnavailable, Error, PermissionDenied

PATH = text(lib.GDRDRV_NODE)


class PinEvent(NamedTuple):
    """A revocation of the pin with a handle; or ``lost`` revocations that were dropped."""

    handle: int
    lost: int


class Node(Owner):
    """An open node, which owns the pins made through it.

    Raises BackendUnavailable without a module, or if its ABI differs; PermissionDenied.
    """

    def __init__(self) -> None:
        #: The node for the C core, valid while this object is held.
        self.struct: Any = ffi.new("struct core_node *")
        undo = Undo()
        error = -lib.core_node_open(self.struct, PATH.encode())
        if error:
            raise _open_error(error)
        undo.callback(lib.core_node_close, self.struct)
        super().__init__()
        self._undo = undo

    @property
    def fd(self) -> int:
        """The descriptor, which polls readable while an event waits."""
        self._check("using /dev/gdrdrv")
        return int(self.struct.fd)

    @property
    def full(self) -> bool:
        """Whether this project's module serves the node, with all of its features."""
        return bool(lib.core_node_full(self.struct))

    def next_event(self) -> PinEvent | None:
        """The next waiting event, or None. Never waits."""
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
    """The node that this process pins through: open while something is pinned through it."""

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
        """In a forked child: forget the parent's node, and a lock that a lost thread may hold."""
        self._lock = threading.Lock()
        self._node = None


own_node = _OwnNode()
os.register_at_fork(after_in_child=own_node.after_fork)
