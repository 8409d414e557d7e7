"""Backend ``gdrdrv``: any device pointer, through the kernel module that serves ``/dev/gdrdrv``.

With this project's module a pin is mapped through its share descriptor, as often as one likes, in
any part, also by other processes. NVIDIA's gdrdrv maps a pin once, as a whole and from a GPU page
on: there every mapping is a part of that one.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from gdrpy import cuda, sim
from gdrpy._fd import describe, duplicate, is_writable, share_size
from gdrpy._resource import Undo
from gdrpy.backends import pointer
from gdrpy.backends.base import Backend
from gdrpy.backends.fdmemory import FdMemory, address_of, lib, map_fd, unmap
from gdrpy.backends.memory import HeldMemory, Memory
from gdrpy.backends.node import Node
from gdrpy.backends.records import PinRequest, Status
from gdrpy.errors import BackendUnavailable, DriverError, InvalidHandle, PermissionDenied, Revoked
from gdrpy.mappingtype import MappingType

_GPU_PAGE = int(lib.GDRDRV_GPU_PAGE_SIZE)
#: Who still maps the share of a pin that has ended finds zeros too.
_PERSISTENT = int(lib.GDRDRV_PIN_V3_PERSISTENT | lib.GDRDRV_PIN_V3_ZERO_AFTER)
#: How long at most it takes to take all mappings of a pin away.
_END_TAKES_MS = 10_000


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


_own_node = _OwnNode()
os.register_at_fork(after_in_child=_own_node.after_fork)


class _Pin:
    """A pin of a node: ended by ``undo`` when it is closed."""

    def __init__(self, undo: Undo, node: Node, ptr: int, nbytes: int, flags: int) -> None:
        self.node = node
        self.handle = node.pin(ptr, nbytes, flags)
        undo.callback(self._end)
        self.pages = node.info(self.handle)

    def _end(self) -> None:
        if not self.node.closed:  # closing it has ended its pins
            self.node.unpin(self.handle)

    @property
    def revoked(self) -> bool:
        return not self.node.closed and self.node.info(self.handle).revoked

    def mapping_type(self) -> MappingType:
        """How it is mapped now. Raises Revoked."""
        kind = self.node.info(self.handle).mapping_type
        if kind is None:
            raise _revoked()
        return kind

    def map(self, function: Callable[[], Any]) -> Any:
        """What a function that maps it gives. Raises Revoked if that is why it failed."""
        try:
            return function()
        except DriverError as error:
            if error.errno == errno.EINVAL and self.revoked:
                raise _revoked() from None
            raise


def _revoked() -> Revoked:
    return Revoked("the GPU memory is gone, freed by its owner or with the pin: close what maps it")


class ShareMemory(FdMemory):
    """What a share descriptor shows: whole GPU pages around a pin, perhaps another process's."""

    def _map(
        self, offset: int, nbytes: int, readonly: bool
    ) -> tuple[int, MappingType, Callable[[], object]]:
        if not readonly and not is_writable(self._fd):
            raise PermissionDenied(
                errno.EACCES, "the descriptor was shared read-only: open it with readonly=True"
            )
        try:
            return super()._map(offset, nbytes, readonly)
        except DriverError as error:
            # The end is told only when the last mapping is gone; new ones are refused before.
            if error.errno == errno.EINVAL and lib.gdr_share_ended(self._fd, _END_TAKES_MS):
                raise _revoked() from None
            raise

    @property
    def revoked(self) -> bool:
        return bool(lib.gdr_share_ended(self._fd, 0))


class PinMemory(ShareMemory):
    """A pin of this project's module, which this process made."""

    def __init__(
        self,
        undo: Undo,
        pin: _Pin,
        fd: int,
        ptr: int,
        nbytes: int,
        location: str,
        persistent: bool,
    ) -> None:
        super().__init__(
            undo,
            fd,
            ptr - pin.pages.va,
            nbytes,
            mapping_type=MappingType.WRITE_COMBINED,
            backend=GdrdrvBackend.name,
            location=location,
        )
        self._pin = pin
        self.handle = pin.handle
        self.persistent = persistent

    def _map(
        self, offset: int, nbytes: int, readonly: bool
    ) -> tuple[int, MappingType, Callable[[], object]]:
        address, _, unmap = super()._map(offset, nbytes, readonly)
        with Undo() as undo:
            undo.callback(unmap)
            kind = self._pin.mapping_type()
            return address, kind, undo.pop_all().close

    @property
    def revoked(self) -> bool:
        return not self.persistent and self._pin.revoked

    def export(self, readonly: bool) -> int:
        if self.revoked:
            raise _revoked()
        return self._pin.node.share(self._pin.handle, readonly)


class WholePinMemory(HeldMemory):
    """A pin of NVIDIA's module: mapped once, as a whole, while any part of it is in use."""

    def __init__(
        self, undo: Undo, pin: _Pin, ptr: int, nbytes: int, location: str, persistent: bool
    ) -> None:
        super().__init__(undo, nbytes, GdrdrvBackend.name, location)
        self._pin = pin
        self._offset = ptr - pin.pages.va
        self._mapping_lock = threading.Lock()
        self._whole: Any = None
        self._parts = 0
        self.handle = pin.handle
        self.persistent = persistent

    def _map(
        self, offset: int, nbytes: int, readonly: bool
    ) -> tuple[int, MappingType, Callable[[], object]]:
        """Read-only is kept by the Mapping alone: the pages are those of the others."""
        del nbytes, readonly
        with self._mapping_lock:
            if not self._parts:
                self._whole = self._pin.map(self._map_whole)
            self._parts += 1
            address = address_of(self._whole) + self._offset + offset
        with Undo() as undo:
            undo.callback(self._give_back_part)
            kind = self._pin.mapping_type()
            return address, kind, undo.pop_all().close

    def _map_whole(self) -> Any:
        file_offset = self._pin.handle * os.sysconf("SC_PAGESIZE")
        return map_fd(self._pin.node.fd, file_offset, 0, self._pin.pages.nbytes, False)

    def _give_back_part(self) -> None:
        with self._mapping_lock:
            self._parts -= 1
            if not self._parts:
                whole, self._whole = self._whole, None
                unmap(whole)

    @property
    def revoked(self) -> bool:
        return not self.persistent and self._pin.revoked


class GdrdrvBackend(Backend):
    """Maps any device pointer of this process, and the pins that other processes share."""

    name = "gdrdrv"
    page_size = _GPU_PAGE
    takes_exports = False
    revocable_pins = True

    def _status(self, device: int | None) -> Status:
        if device is not None and cuda.simulated() and not sim.on_bar():
            return Status(
                False,
                "the simulated GPU's memory is no PCI memory, which a kernel module could pin",
                "run it in QEMU: tests/vm/README.md",
            )
        try:
            with Node() as node:
                return Status(True, node.origin)
        except (BackendUnavailable, PermissionDenied) as error:
            reason, _, remedy = str(error.strerror).partition(": ")
            return Status(False, reason, remedy)

    def from_export(self, fd: int) -> Memory:
        size = share_size(fd)
        if size is None:
            raise InvalidHandle(
                f"file descriptor {fd} is {describe(fd)}, not a share of a pin: pass one that "
                f"Pin.export() gave"
            )
        with Undo() as undo:
            own = duplicate(fd)
            undo.callback(os.close, own)
            return ShareMemory(
                undo.pop_all(),
                own,
                0,
                size,
                mapping_type=MappingType.WRITE_COMBINED,
                backend=self.name,
                location="an unknown GPU",
            )

    def from_allocation(self, fd: int, ptr: int | None, size: int, device: int) -> Memory:
        del fd
        if ptr is None:
            raise InvalidHandle("the gdrdrv backend needs the GPU view: open it with gpu=True")
        return self._pin(_own_node.get(), ptr, size, device, _PERSISTENT)

    def from_pointer(self, ptr: int, nbytes: int, device: int, request: PinRequest) -> Memory:
        pointer.allocation_range(ptr, nbytes)
        node = request.node()
        if node.full:
            return self._pin(node, ptr, nbytes, device, _flags(request))
        if request.revocable is node.persistent:
            raise BackendUnavailable(
                f"{node.origin} makes {'persistent' if node.persistent else 'revocable'} pins "
                f"only: pass revocable={not request.revocable}, or load the module otherwise "
                f"(its parameter use_persistent_mapping)"
            )
        if request.revocable and not request.sigbus:
            raise BackendUnavailable(
                f"{node.origin} answers with SIGBUS where freed memory is touched: pass "
                f"sigbus=True, or load gdrpy's module"
            )
        return self._pin(node, ptr, nbytes, device, 0)

    def _pin(self, node: Node, ptr: int, nbytes: int, device: int, flags: int) -> Memory:
        location = cuda.location(device)
        with Undo() as undo:
            if node.full:
                pin = _Pin(undo, node, ptr, nbytes, flags)
                fd = node.share(pin.handle)
                undo.callback(os.close, fd)
                persistent = not flags & lib.GDRDRV_PIN_V3_REVOCABLE
                return PinMemory(undo.pop_all(), pin, fd, ptr, nbytes, location, persistent)
            start = ptr - ptr % _GPU_PAGE  # only such a pin can be mapped
            pin = _Pin(undo, node, start, ptr + nbytes - start, 0)
            return WholePinMemory(undo.pop_all(), pin, ptr, nbytes, location, node.persistent)


def _flags(request: PinRequest) -> int:
    if not request.revocable:
        return _PERSISTENT
    zeros = 0 if request.sigbus else lib.GDRDRV_PIN_V3_ZERO_AFTER
    return int(lib.GDRDRV_PIN_V3_REVOCABLE | zeros)
