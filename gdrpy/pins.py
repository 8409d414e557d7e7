"""The gdrcopy API: pin GPU memory that somebody else allocated, and map it for the CPU."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from gdrpy import cuda
from gdrpy.arrays.interop import packed_array
from gdrpy.arrays.mappable import Mappable
from gdrpy.common.arguments import as_size
from gdrpy.common.resource import Resource, Undo
from gdrpy.errors import BackendUnavailable, SizeMismatch
from gdrpy.memory.choice import ALL, take_pointer
from gdrpy.memory.gpu import CoreMemory
from gdrpy.memory.mappingtype import MappingType
from gdrpy.memory.node import Node
from gdrpy.memory.sending import Parcel, map_parcel
from gdrpy.memory.view import Origin


@dataclass(frozen=True)
class PinInfo:
    """What is pinned: ``va`` and ``mapped_size`` are the range rounded out to ``page_size`` bytes.

    ``mapping_type`` is None while nothing is mapped.
    """

    va: int
    mapped_size: int
    page_size: int
    mapped: bool
    mapping_type: MappingType | None


@dataclass(frozen=True)
class Attributes:
    """What pins of a backend promise.

    ``persistent``: freeing the GPU memory does not revoke its pins, which keep it alive.
    """

    backend: str
    persistent: bool
    page_size: int


@dataclass(frozen=True)
class Revocation:
    """The GPU memory behind a pin was freed by its owner. ``pin`` is to be closed."""

    pin: Pin


def open(backend: str | None = None) -> Gdr:
    """Open the gdrcopy API. ``backend`` forces one; by default each pin takes the best there is."""
    if backend is not None and backend not in ALL:
        raise ValueError(f"there is no backend {backend!r}: choose one of {', '.join(ALL)}")
    return Gdr(backend)


class Gdr(Resource):
    """Pins GPU memory. Made by :func:`gdrpy.open`; closing it closes its pins."""

    def __init__(self, backend: str | None) -> None:
        super().__init__()
        self._backend = backend
        self._pins: weakref.WeakSet[Pin] = weakref.WeakSet()
        self._node: Node | None = None

    def pin(
        self,
        pointer: Any,
        nbytes: int | None = None,
        *,
        revocable: bool = False,
        sigbus: bool = False,
    ) -> Pin:
        """Hold a range of GPU memory for CPU access.

        ``pointer`` is a device address of this process (of cuMemAlloc, cudaMalloc or VMM memory,
        also inside an allocation) with ``nbytes``, or a contiguous GPU array of any library.

        The pin keeps the memory when its owner frees it. A ``revocable`` one, which only the gdrdrv
        backend makes, loses it: :meth:`events` tells, mappings raise Revoked once it is known, and
        views find zeros; or with ``sigbus``, as from NVIDIA's module, the process gets a SIGBUS.

        On a stock driver this gives every process on the machine that guesses two 32-bit handles
        the means to map a cuMemAlloc allocation: prefer :func:`gdrpy.alloc` to share memory.

        A pin of an array that its library shares for reading only, and of memory that the GPU may
        only read, is read-only: ``pin.readonly``.

        Raises InvalidHandle, SizeMismatch, ValueError, BackendUnavailable.
        """
        call = "Gdr.pin"
        self._check(call)
        if isinstance(pointer, int | cuda.driver().CUdeviceptr):
            address, room, readonly = int(pointer), None, False
        else:
            array = packed_array(call, pointer)
            if array is None:
                raise TypeError(
                    f"{call}: {type(pointer).__name__} is no device pointer and no GPU array by "
                    f"__dlpack__ or __cuda_array_interface__: pass an int address with nbytes, or "
                    f"a contiguous CUDA array"
                )
            address, room, readonly = array.address, array.nbytes, array.readonly
        if nbytes is None and room is None:
            raise TypeError(f"{call}: an address needs nbytes")
        if sigbus and not revocable:
            raise ValueError(f"{call}: sigbus=True says how a pin ends with revocable=True only")
        size = as_size(call, room if nbytes is None else nbytes)
        if room is not None and size > room:
            raise SizeMismatch(f"{call}: {size} bytes were asked for, and the array has {room}")
        if address <= 0 or address + size >= 1 << 64:
            raise ValueError(f"{call}: {size} bytes at {address:#x} is no range of addresses")
        with self._lock:
            self._check(call)
            memory = take_pointer(
                address,
                size,
                revocable=bool(revocable),
                sigbus=bool(sigbus),
                open_node=self._open_node,
                backend=self._backend,
            )
            pin = Pin(memory, address, readonly)
            self._pins.add(pin)
        return pin

    def fileno(self) -> int:
        """A descriptor that polls readable while a revocation waits: the kernel module's node.

        Raises BackendUnavailable where gdrpy's module is not loaded.
        """
        return self._events_node("Gdr.fileno").fd

    def events(self) -> list[Revocation]:
        """The revocations since the last call, each once; empty if there are none. Never waits.

        Only of pins that are open, and revocable. Raises BackendUnavailable as :meth:`fileno`.
        """
        node = self._events_node("Gdr.events")
        with self._lock:
            found: list[Pin] = []
            while (event := node.next_event()) is not None:
                found += [
                    pin
                    for pin in list(self._pins)
                    if event.lost or pin._taken.handle == event.handle
                ]
            return [Revocation(pin) for pin in found if pin._note_revocation()]

    def _open_node(self) -> Node:
        with self._lock:
            if self._node is None:
                self._node = Node()
            return self._node

    def _events_node(self, call: str) -> Node:
        self._check(call)
        status = ALL["gdrdrv"].status(0)
        if not status.usable:
            raise BackendUnavailable(f"{call}: {status.reason}: {status.remedy}")
        node = self._open_node()
        if not node.full:
            raise BackendUnavailable(f"{call}: {status.reason} has no events: load gdrpy's module")
        return node

    def _release(self) -> None:
        pins = list(self._pins)
        for pin in pins:
            pin._refuse_if_busy()
        with Undo() as undo:
            if self._node is not None:
                undo.keep(self._node)
            for pin in pins:
                undo.callback(pin.close)

    def __repr__(self) -> str:
        if self.closed:
            return "<Gdr CLOSED>"
        return f"<Gdr with {len(self._pins)} pins, backend {self._backend or 'chosen by pin'}>"


class Pin(Mappable):
    """A pinned range of GPU memory. Made by :meth:`Gdr.pin`.

    Byte 0 of a pin and of its mappings is at the pointer that was pinned, aligned or not.
    """

    def __init__(self, memory: CoreMemory, ptr: int, readonly: bool) -> None:
        """``readonly`` is its library's wish; what the GPU may only read is read-only anyway."""
        super().__init__(memory.nbytes, ptr, memory.device)
        self.readonly = readonly or (
            memory.device is not None and cuda.only_reads(memory.device, ptr)
        )
        self._taken: CoreMemory = memory
        self._told = False
        self.ptr = ptr
        self.backend = memory.backend
        self.location = memory.location

    def _memory(self) -> CoreMemory:
        return self._taken

    def _origin(self, start: int) -> Origin:
        # A share begins with the pin's first page.
        return Origin(None, Parcel(self._taken), self.ptr % self._taken.page_size + start)

    def _give_back(self, undo: Undo) -> None:
        undo.callback(self._taken.close)

    def _note_revocation(self) -> bool:
        """Whether it is revoked, and this is the first time that somebody asks so."""
        with self._lock:
            if self.closed or self._told or not self.revoked:
                return False
            self._told = True
            return True

    def export(self, *, readonly: bool = False) -> int:
        """A new file descriptor by which any process may map the pinned GPU pages.

        Open it by ``Region.from_fd(fd, gpu=False)``; with ``readonly``, and of a pin that is
        read-only itself, the kernel lets nobody write through it. It shows whole GPU pages: byte 0
        of the pin is at ``pin.ptr - pin.info.va``, and what else lies in the first and the last
        page is shared with it. It ends with the pin: then whoever maps it finds zeros, and
        region.revoked tells.

        Raises BackendUnavailable where gdrpy's kernel module is not loaded.
        """
        with self._lock:
            self._check("Pin.export")
            return self._taken.export(bool(readonly) or self.readonly)

    @property
    def attributes(self) -> Attributes:
        """What this pin's backend promises."""
        return Attributes(self.backend, self._taken.persistent, self._taken.page_size)

    @property
    def info(self) -> PinInfo:
        """The range, rounded out to pages, and whether it is mapped."""
        self._check("Pin.info")
        page = self._taken.page_size
        first = self.ptr - self.ptr % page
        last = -(-(self.ptr + self.nbytes) // page) * page
        mapped = [one.mapping_type for one in self._mapped() if not one.closed]
        return PinInfo(first, last - first, page, bool(mapped), mapped[0] if mapped else None)

    def __reduce__(self) -> tuple[Any, ...]:
        self._check("sending a Pin")
        _, parcel, offset = self._origin(0)
        return map_parcel, (parcel, False, offset, self.nbytes, self.readonly)

    def __repr__(self) -> str:
        if self.closed:
            return "<Pin CLOSED>"
        return f"<Pin of {self.nbytes} bytes at {self.ptr:#x} on {self.location}, {self.backend}>"
