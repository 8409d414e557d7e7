"""Pins: GPU memory that another library allocated, held and mapped for the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakSet

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.arrays.array import Array
from gdrpy.arrays.interop import packed_array
from gdrpy.arrays.shown import Shown
from gdrpy.common.arguments import as_size
from gdrpy.common.resource import Resource
from gdrpy.errors import BackendUnavailable, ReadOnly, SizeMismatch
from gdrpy.memory import gpu
from gdrpy.memory.backends import ALL, forced
from gdrpy.memory.gpu import GpuMemory
from gdrpy.memory.memory import settle_all
from gdrpy.memory.node import Node, own_node
from gdrpy.memory.sending import map_part, travel
from gdrpy.memory.view import Mapping, MappingType, Travel
from gdrpy.region import region_of

#: The names that gdrpy itself does not offer.
__all__ = ["Attributes", "PinInfo", "Revocation"]


class PinInfo(NamedTuple):
    """A pinned range: ``va`` and ``mapped_size`` are rounded out to pages of ``page_size`` bytes.

    ``mapping_type`` is None while nothing is mapped.
    """

    va: int
    mapped_size: int
    page_size: int
    mapped: bool
    mapping_type: MappingType | None


class Attributes(NamedTuple):
    """Properties of a backend's pins.

    ``persistent``: freeing the GPU memory does not revoke its pins, which keep it alive.
    """

    backend: str
    persistent: bool
    page_size: int


class Revocation(NamedTuple):
    """The owner freed the GPU memory behind ``pin``, which should be closed."""

    pin: Pin


def pin(
    pointer: Any,
    nbytes: int | None = None,
    *,
    revocable: bool = False,
    sigbus: bool = False,
    backend: str | None = None,
) -> Pin:
    """Hold a range of GPU memory for CPU access.

    Args:
        pointer: A device address of this process (of cuMemAlloc, cudaMalloc or VMM memory, also
            inside an allocation), or a contiguous GPU array of any library.
        nbytes: The size of the range; for an array None.
        revocable: Whether the owner may free the memory under the pin.
        sigbus: Whether an access then raises SIGBUS, as with NVIDIA's module.
        backend: The backend; None takes the best one.

    The pin keeps the memory when its owner frees it. A ``revocable`` pin, which only the gdrdrv
    backend makes, loses it: mappings raise Revoked once the revocation is known, and views read
    zeros. :meth:`Gdr.events` reports revocations of the pins of :func:`gdrpy.open`.

    On a stock driver, a pin lets any process on the machine that guesses two 32-bit handles map a
    cuMemAlloc allocation: prefer :func:`gdrpy.alloc` to share memory.

    A pin is read-only (``pin.readonly``) if its array's library shares the array for reading only,
    or if the GPU may only read the memory.

    Raises InvalidHandle, SizeMismatch, ValueError, BackendUnavailable.
    """
    return _pin("pin", pointer, nbytes, revocable, sigbus, own_node.get, backend)


def _pin(
    call: str,
    pointer: Any,
    nbytes: int | None,
    revocable: bool,
    sigbus: bool,
    open_node: Callable[[], Node],
    backend: str | None,
) -> Pin:
    array = None
    if not isinstance(pointer, int | cuda.driver().CUdeviceptr):
        array = packed_array(call, pointer)
        if array is None:
            raise TypeError(
                f"{call}: {type(pointer).__name__} is neither a device pointer nor a GPU array "
                f"with __dlpack__ or __cuda_array_interface__: pass an int address with nbytes, "
                f"or a contiguous CUDA array"
            )
    elif nbytes is None:
        raise TypeError(f"{call}: an address needs a size: {call}(address, nbytes)")
    address = int(pointer) if array is None else array.address
    if sigbus and not revocable:
        raise ValueError(f"{call}: sigbus=True needs revocable=True")
    size = as_size(call, array.nbytes if nbytes is None and array is not None else nbytes)
    if array is not None and size > array.nbytes:
        raise SizeMismatch(f"{call}: {size} bytes were asked for, and the array has {array.nbytes}")
    if address <= 0 or address + size >= 1 << 64:
        raise ValueError(f"{call}: {size} bytes at {address:#x} is not a range of addresses")
    memory = gpu.pin_range(
        address,
        size,
        revocable=bool(revocable),
        sigbus=bool(sigbus),
        open_node=open_node,
        backend=forced(backend),
    )
    return Pin(memory, array is not None and array.readonly)


def from_tensor(tensor: Any, *, backend: str | None = None) -> Array:
    """The CPU view of a contiguous GPU array of torch, cupy, numba, jax or any other library.

    If the array lies in a region of this process with a CPU view, that view is used; otherwise the
    array is pinned as by :func:`gdrpy.pin`, with ``backend``. The call waits for the work that the
    library has queued on the array. The Array keeps the tensor until it is closed.

    Raises TypeError for anything but a GPU array, ValueError if it has no elements or they are not
    packed, InvalidHandle and BackendUnavailable, with the reason, if its kind of memory cannot be
    mapped (managed, of a cudaMallocAsync pool, not exportable).
    """
    call = "from_tensor"
    array = packed_array(call, tensor)
    if array is None:
        raise TypeError(
            f"{call}: this {type(tensor).__name__} is not an array in GPU memory: an array on the "
            f"host needs no mapping"
        )
    if not array.nbytes:
        raise ValueError(f"{call}: an array of shape {array.shape} has no elements to map")
    found = region_of(array.address, array.nbytes)
    if found is not None:
        region, offset = found
        if region._cpu is not None and backend in (None, region._cpu.backend):
            return Array.of_tensor(region, array, offset, owned=False)
    with Undo() as undo:
        memory = gpu.pin_range(
            array.address, array.nbytes, open_node=own_node.get, backend=forced(backend)
        )
        undo.keep(memory)
        memory.source = array.owner
        pinned = Pin(memory, array.readonly)
        _ = pinned.cpu  # map now, so that this call raises if it cannot be mapped
        mapped = Array.of_tensor(pinned, array, 0, owned=True)
        undo.forget()
        return mapped


def open(backend: str | None = None) -> Gdr:
    """Open the gdrcopy API. ``backend`` forces one; by default each pin uses the best available."""
    if backend is not None and backend not in ALL:
        raise ValueError(f"there is no backend {backend!r}: choose one of {', '.join(ALL)}")
    return Gdr(backend)


class Gdr(Resource):
    """Pins GPU memory, and reports revocations. Made by :func:`gdrpy.open`.

    Closing it closes its pins.
    """

    def __init__(self, backend: str | None) -> None:
        super().__init__()
        self._backend = backend
        self._pins: WeakSet[Pin] = WeakSet()
        self._node: Node | None = None

    def pin(
        self,
        pointer: Any,
        nbytes: int | None = None,
        *,
        revocable: bool = False,
        sigbus: bool = False,
    ) -> Pin:
        """Hold a range of GPU memory for CPU access: see :func:`gdrpy.pin`.

        Args:
            pointer: A device address of this process, or a contiguous GPU array of any library.
            nbytes: The size of the range; for an array None.
            revocable: Whether the owner may free the memory under the pin.
            sigbus: Whether an access then raises SIGBUS.
        """
        call = "Gdr.pin"
        self._check(call)
        with self._lock:
            self._check(call)
            made = _pin(call, pointer, nbytes, revocable, sigbus, self._open_node, self._backend)
            self._pins.add(made)
        return made

    def fileno(self) -> int:
        """The kernel module's node, as a descriptor that polls readable while an event waits.

        Raises BackendUnavailable if gdrpy's module is not loaded.
        """
        return self._events_node("Gdr.fileno").fd

    def events(self) -> list[Revocation]:
        """The revocations of open pins since the last call, each reported once. Never waits.

        Only revocable pins are revoked. Raises BackendUnavailable as :meth:`fileno`.
        """
        node = self._events_node("Gdr.events")
        with self._lock:
            found: list[Pin] = []
            while (event := node.next_event()) is not None:
                found += [
                    one
                    for one in list(self._pins)
                    if event.lost or one._memory.handle == event.handle
                ]
            return [Revocation(one) for one in found if one._note_revocation()]

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
        settle_all()
        for one in pins:
            one._idle_mappings()
        with Undo() as undo:
            if self._node is not None:
                undo.keep(self._node)
            for one in pins:
                undo.callback(one.close)

    def _release_with_users(self) -> bool:
        told: list[bool] = []
        with Undo() as undo:
            if self._node is not None:
                undo.keep(self._node)
            for one in list(self._pins):
                undo.checked(told.append, one._retire)
        return any(told)

    def __repr__(self) -> str:
        if self.closed:
            return "<Gdr CLOSED>"
        return f"<Gdr with {len(self._pins)} pins, backend {self._backend or 'chosen by pin'}>"


class Pin(Shown):
    """A pinned range of GPU memory. Made by :func:`gdrpy.pin` and :meth:`Gdr.pin`.

    Byte 0 of a pin is at the pointer that was pinned, aligned or not. A pin is written and read
    like a region, through :attr:`cpu`, which is mapped on first use. Only the pins that
    :func:`gdrpy.from_tensor` makes use DMA, since they keep their tensor.
    """

    _is_sent = False
    _memory: GpuMemory

    def __init__(self, memory: GpuMemory, readonly: bool) -> None:
        """``readonly`` as the array's library asks; memory that the GPU only reads always is."""
        assert memory.ptr is not None
        # The owner may free the memory, and its address may be reused before the pin ends.
        ptr = None if memory.source is None or memory.device is None else memory.ptr
        super().__init__(memory, memory.size, ptr, readonly or memory.readonly)
        self._pin = True
        self._told = False

    @property
    def ptr(self) -> int:
        """The pointer that was pinned."""
        assert self._memory.ptr is not None
        return self._memory.ptr

    @property
    def backend(self) -> str:
        """The name of the backend that made the pin."""
        assert self._memory.backend is not None
        return self._memory.backend

    @property
    def cpu(self) -> Mapping:
        """The mapping of the whole pin, made on first use."""
        self._check("Pin.cpu")
        with self._lock:
            if self._cpu is None:
                self._cpu = self._map(0, self.nbytes, self.readonly)
            return self._cpu

    @property
    def _has_cpu_view(self) -> bool:
        self._check("Pin.cpu")
        return True

    def _prepare(self, call: str, writing: bool) -> None:
        with self._lock:
            self._check(call)
            _ = self.cpu
            super()._prepare(call, writing)

    def _check_writable(self, call: str) -> None:
        self._check(call)
        if self.readonly:
            raise ReadOnly(f"{call}: the pin is read-only, as its array or the GPU's view of it is")

    def _travel(self, start: int) -> Travel:
        # The memory that arrives begins with the pin's first page.
        return travel(None, self._memory, self.ptr % self._memory.page_size + start)

    def _note_revocation(self) -> bool:
        """Whether the pin is revoked and has not been reported yet; marks it as reported."""
        with self._lock:
            if self.closed or self._told or not self.revoked:
                return False
            self._told = True
            return True

    def export(self, *, readonly: bool = False) -> int:
        """A new file descriptor by which any process may map the pinned GPU pages.

        Open it by ``Region.from_fd(fd, gpu=False)``. With ``readonly``, or if the pin is read-only,
        the kernel refuses writes through it. It shows whole GPU pages: byte 0 of the pin is at
        ``pin.ptr - pin.info.va``, and other data in the first and the last page is shared too.
        When the pin ends, mappings of it read zeros, and ``region.revoked`` is true.

        Raises BackendUnavailable if gdrpy's kernel module is not loaded.
        """
        self._check("Pin.export")
        return self._memory.share(bool(readonly) or self.readonly)

    @property
    def attributes(self) -> Attributes:
        """Properties of this pin's backend."""
        return Attributes(self.backend, self._memory.persistent, self._memory.page_size)

    @property
    def info(self) -> PinInfo:
        """The range, rounded out to pages, and whether it is mapped."""
        self._check("Pin.info")
        page = self._memory.page_size
        first = self.ptr - self.ptr % page
        last = -(-(self.ptr + self.nbytes) // page) * page
        mapped = [one.mapping_type for one in self._mapped() if not one.closed]
        return PinInfo(first, last - first, page, bool(mapped), mapped[0] if mapped else None)

    def __reduce__(self) -> tuple[Any, ...]:
        self._check("sending a Pin")
        offset = self.ptr % self._memory.page_size
        return map_part, (self._memory, offset, self.nbytes, self.readonly)

    def __repr__(self) -> str:
        if self.closed:
            return "<Pin CLOSED>"
        return f"<Pin of {self.nbytes} bytes at {self.ptr:#x} on {self.location}, {self.backend}>"
