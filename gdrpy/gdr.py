"""The gdrcopy API: pin GPU memory that somebody else allocated, and map it for the CPU."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from gdrpy import cuda
from gdrpy._arguments import as_size
from gdrpy._mappable import Mappable
from gdrpy._resource import Resource, Undo
from gdrpy.backends import ALL, Memory, take_pointer
from gdrpy.backends.pointer import device_of
from gdrpy.errors import SizeMismatch
from gdrpy.interop import device_range
from gdrpy.mapping import MappingType


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

    def pin(self, pointer: Any, nbytes: int | None = None) -> Pin:
        """Hold a range of GPU memory for CPU access.

        ``pointer`` is a device address of this process (of cuMemAlloc, cudaMalloc or VMM memory,
        also inside an allocation) with ``nbytes``, or a contiguous CUDA array of any library.

        On a stock driver this gives every process on the machine that guesses two 32-bit handles
        the means to map a cuMemAlloc allocation: prefer :func:`gdrpy.alloc` to share memory.

        Raises InvalidHandle, SizeMismatch, ValueError, BackendUnavailable.
        """
        call = "Gdr.pin"
        self._check(call)
        if isinstance(pointer, int | cuda.driver().CUdeviceptr):
            address, room = int(pointer), None
        else:
            address, room = device_range(pointer)
        if nbytes is None and room is None:
            raise TypeError(f"{call}: an address needs nbytes")
        size = as_size(call, room if nbytes is None else nbytes)
        if room is not None and size > room:
            raise SizeMismatch(f"{call}: {size} bytes were asked for, and the array has {room}")
        if address <= 0 or address + size >= 1 << 64:
            raise ValueError(f"{call}: {size} bytes at {address:#x} is no range of addresses")
        with self._lock:
            self._check(call)
            device = device_of(address)
            memory = take_pointer(address, size, device, self._backend)
            pin = Pin(memory, address, device)
            self._pins.add(pin)
        return pin

    def _release(self) -> None:
        pins = list(self._pins)
        for pin in pins:
            pin._refuse_if_busy()
        with Undo() as undo:
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

    def __init__(self, memory: Memory, ptr: int, device: int) -> None:
        super().__init__(memory.nbytes, ptr, device)
        self._taken = memory
        self.ptr = ptr
        self.backend = memory.backend
        self.location = memory.location

    def _memory(self) -> Memory:
        return self._taken

    def _give_back(self, undo: Undo) -> None:
        undo.callback(self._taken.close)

    @property
    def attributes(self) -> Attributes:
        """What this pin's backend promises."""
        return Attributes(self.backend, True, ALL[self.backend].page_size)

    @property
    def info(self) -> PinInfo:
        """The range, rounded out to pages, and whether it is mapped."""
        self._check("Pin.info")
        page = ALL[self.backend].page_size
        first = self.ptr - self.ptr % page
        last = -(-(self.ptr + self.nbytes) // page) * page
        mapped = [one.mapping_type for one in list(self._mappings) if not one.closed]
        return PinInfo(first, last - first, page, bool(mapped), mapped[0] if mapped else None)

    def __repr__(self) -> str:
        if self.closed:
            return "<Pin CLOSED>"
        return f"<Pin of {self.nbytes} bytes at {self.ptr:#x} on {self.location}, {self.backend}>"
