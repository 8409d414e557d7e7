"""GPU memory that this process holds: an allocation, an import of one, or a pinned range."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from gdrpy import cuda
from gdrpy._core._mapping import Descriptor, Undo, alone, engine_reach
from gdrpy._core.calls import call, checker, failure, ffi, lib, made, text
from gdrpy._core.driver import warn_if_untested
from gdrpy.common.resource import Hold, Lasting
from gdrpy.errors import BackendUnavailable, Error, MissingView
from gdrpy.memory import reclaim
from gdrpy.memory.backends import cuda_functions
from gdrpy.memory.descriptors import fork_lock, private, private_duplicate
from gdrpy.memory.memory import Memory
from gdrpy.memory.node import Node, own_node
from gdrpy.memory.view import Mapping

_VIEW, _ERROR = ffi.typeof("struct core_view *"), ffi.typeof("struct core_error *")
_ADDRESS = ffi.typeof("uintptr_t")

#: This process's memory with a GPU view of its own, by id(): see :func:`memory_at`.
_viewed: dict[int, ref[GpuMemory]] = {}


class GpuMemory(Memory):
    """GPU memory, held by its descriptor, its GPU address, its fabric handle, or several of them.

    The C core makes a ``struct core_memory`` of it before it is first mapped. Its parts are
    released in this order: mappings, ``struct core_memory``, GPU view, allocation, descriptor.
    ``close()`` releases them at once, or when the last mapping ends in another thread. A GPU view
    that is dropped stays until the GPU work queued by then is done.
    """

    #: Bytes that a pin is rounded out to.
    page_size = 1
    #: Whether it keeps the GPU memory when the owner of the range frees it.
    persistent = True
    #: Whether the GPU may only read it; known of pins.
    readonly = False
    #: Whether this process's GPU view was made to refuse writes.
    guarded = False
    #: The kernel module's name for a pin, in the events of its node; 0 for other memory.
    handle = 0

    def __init__(
        self,
        size: int,
        undo: Undo | None,
        *,
        held: Undo | None = None,
        fd: Descriptor | None = None,
        ptr: int | None = None,
        device: int | None = None,
        home: int | None = None,
        fabric: bytes | None = None,
        backend: str | None = None,
    ) -> None:
        """``undo`` releases all but the core's part, and is taken over; None for a range of
        another owner.

        ``held`` is the step of ``undo`` that releases all but the GPU addresses, where those can
        stay without it.
        ``backend`` maps it; None chooses one.
        """
        self._core_undo = Undo()  # first: it is released if the rest cannot be made
        super().__init__(size, None, "an unknown GPU" if home is None else cuda.location(home))
        self._fd = fd
        self.ptr = ptr
        self.device = device
        self.home = home
        self.fabric = fabric
        self._forced = backend
        self._held = held
        self._core: Any = None
        self._engine: object = None
        if undo is None:
            return
        if ptr is not None:
            number = id(self)
            _viewed[number] = ref(self, partial(_viewed.pop, number))  # the ref is its default
        # Last: until then the caller releases what it has.
        self._undo = undo.pop_all(*(() if ptr is None else (reclaim.left(self.devices),)))

    def keep_core(self, core: Any, undo: Undo) -> None:
        """Keep the core's ``struct core_memory`` of it, which ``undo`` releases."""
        self._core, self._core_undo = core, undo
        self.backend, self.location = text(core.backend.name), text(core.location)
        self.page_size = int(core.page_size)
        self.persistent = bool(core.persistent)
        self.readonly = bool(core.readonly)
        self.handle = int(core.handle)
        if self.backend == "nvrm":
            warn_if_untested()

    def _take(self) -> None:
        """Have the core take the allocation in, unless another thread already did."""
        fd = self.fd
        if self._core is not None:
            return
        assert self.home is not None
        with Undo() as undo:
            where = {"ptr": self.ptr or 0, "nbytes": self.size, "fd": fd, "device": self.home}
            core = take(undo, self._forced, own_node.get, **where)
            self.keep_core(core, undo.pop_all())

    def map(self, offset: int, nbytes: int, readonly: bool) -> Mapping:
        """As :meth:`Memory.map`. Also raises Revoked, PermissionDenied (shared read-only),
        BackendUnavailable (no backend can map it), MissingView (opened by a fabric handle).
        """
        if self._core is None:
            # In this order: a thread with the first lock may end a mapping, which takes the second.
            alone(fork_lock, alone, self._lock, self._take)
        view, error = ffi.new(_VIEW), ffi.new(_ERROR)
        undo = Undo()
        undo.callback(self.let_go, view)
        try:
            alone(self._lock, self._hold_open, view)
            undo.checked(checker(error), lib.core_memory_unmap, self._core, view, error)
            if lib.core_memory_map(self._core, offset, nbytes, readonly, view, error) < 0:
                raise failure(error)
            address, end = int(ffi.cast(_ADDRESS, view.map.address)), undo.close
            ptr = None if self.ptr is None else self.ptr + offset
            return Mapping(
                address, nbytes, view.kind, readonly, end, self.backend, ptr, self.device
            )
        except BaseException:
            with undo:
                raise

    @property
    def users(self) -> int:
        """The number of users of its GPU address: all but the views of mappings."""
        return sum(not isinstance(user, ffi.CData) for user in tuple(self._users))

    @property
    def busy(self) -> int:
        return sum(not isinstance(user, (ffi.CData, Lasting)) for user in tuple(self._users))

    @property
    def has_gpu_view(self) -> bool:
        return self.ptr is not None and self._undo is not None

    @property
    def fd(self) -> int:
        self._check("using memory's descriptor")
        if self._fd is None:
            if self.fabric is not None:
                raise MissingView(
                    "memory opened by a fabric handle has no file descriptor and no CPU view: pass "
                    "on the handle, Region.export_fabric()"
                )
            alone(fork_lock, alone, self._lock, self._share_once)
        assert self._fd is not None
        return self._fd.fileno()

    def _share_once(self) -> None:
        if self._fd is None:
            self._fd = self._core_undo.keep(private(self.share, False))

    def share(self, readonly: bool) -> int:
        """A new descriptor by which other processes may map a pin. Raises BackendUnavailable."""
        with self._lock:
            self._check("sharing memory")
            return call(lib.core_memory_share, self._core, readonly)

    def engine(self, call: str) -> object:
        with self._lock:
            self._check(call)
            if self._engine is None:
                try:
                    self._engine = self._reach()
                except BackendUnavailable as error:
                    raise BackendUnavailable(f"{call}: {error}") from error
            return self._engine

    def _reach(self) -> object:
        if self._fd is not None and not self.handle:
            return engine_reach(self._fd.fileno(), self.size, self.ptr or 0, 0, (), [])
        gpu, block = ffi.new("struct core_rm_gpu *"), ffi.new("struct core_engine_block *")
        blocks: list[tuple[int, int, int, int]] = []
        while self._core is not None and lib.core_nvrm_part(self._core, len(blocks), gpu, block):
            blocks.append((block.client, block.object, block.offset, block.nbytes))
        if not blocks:
            raise BackendUnavailable(
                "the copy engine cannot be used: it needs a descriptor of the memory, or a pin by "
                "the nvrm backend: allocate with gdrpy.alloc(), or pin with backend='nvrm'"
            )
        pci = gpu.pci_domain, gpu.pci_bus, gpu.pci_slot
        return engine_reach(-1, 0, self.ptr or 0, self._core.buffer_id, pci, blocks)

    @property
    def revoked(self) -> bool:
        if self._core is None:
            return False
        with self._lock:
            self._check("asking whether memory was revoked")
            return bool(lib.core_memory_revoked(self._core))

    @property
    def can_detach(self) -> bool:
        """Whether a descriptor can bring it back to its GPU addresses."""
        return self.ptr is not None and self._held is not None and self.fabric is None

    def detach(self) -> None:
        """Give back all but the GPU addresses. Nothing may be mapped or running."""
        assert self._held is not None
        self.detached = True
        self._engine = self._core = self._fd = None
        with Undo() as undo:
            undo.callback(self._held.close)
            undo.callback(self._core_undo.close)

    def detach_dropped(self) -> bool:
        """Detach memory that its region no longer uses; False while the CPU or a copy uses it."""
        with self._lock:
            if any(not isinstance(user, Lasting) for user in tuple(self._users)):
                return False
            if self._users and not self.detached:
                self.detach()
                self.source = None
            return True

    def attach(self, fd: Descriptor, undo: Undo) -> None:
        """Take over memory that was mapped at the GPU addresses, which ``undo`` releases."""
        assert self._held is not None
        self._held.keep(undo)
        self._fd = fd
        self.detached = False

    def _give_back(self) -> None:
        self._engine = None
        with Undo() as undo:
            if self._undo is not None:
                undo.callback(self._undo.close)
            undo.callback(self._core_undo.close)
        self.source = None

    def _drop(self) -> None:
        if not self.has_gpu_view:
            self._give_back()
            return
        self._engine = None
        with Undo() as undo:
            undo.callback(reclaim.give_back, self.devices, self._undo, self.source)
            undo.callback(self._core_undo.close)
        self.source = None


def memory_at(address: int, nbytes: int) -> tuple[GpuMemory, int] | None:
    """The memory whose GPU view contains a range, and the range's offset in it.

    Unlike a region it is found as long as a tensor holds it, detached and closed memory too.
    """
    for one in list(_viewed.values()):
        memory = one()
        if memory is None or memory.ptr is None or memory._forked():
            continue
        if memory._closed and not memory._users:
            continue
        offset = address - memory.ptr
        if 0 <= offset <= memory.size - nbytes:
            return memory, offset
    return None


def memories_of(source: Callable[[object], bool]) -> list[GpuMemory]:
    """The open memory with a GPU view whose ``source`` the function accepts."""
    found = [one() for one in list(_viewed.values())]
    return [
        one
        for one in found
        if one is not None and not one._closed and not one._forked() and source(one.source)
    ]


def keep_fd(fd: int, size: int) -> GpuMemory:
    """Exported memory without a GPU view, held by a duplicate of its descriptor."""
    with Undo() as undo:
        own = undo.keep(private_duplicate(fd))
        return GpuMemory(size, undo, fd=own)


def pin_range(
    ptr: int,
    nbytes: int,
    *,
    open_node: Callable[[], Node],
    backend: str | None,
    revocable: bool = False,
    sigbus: bool = False,
) -> GpuMemory:
    """Pin a range at a device pointer of this process; byte 0 of the memory is at ``ptr``.

    A ``revocable`` pin loses the memory when its owner frees it; an access then reads zeros, or
    with ``sigbus`` raises SIGBUS. ``open_node`` gives the node whose events report this.

    Raises BackendUnavailable, InvalidHandle, SizeMismatch, OutOfMemory.
    """
    with Undo() as undo:
        core = take(
            undo, backend, open_node, ptr=ptr, nbytes=nbytes, revocable=revocable, sigbus=sigbus
        )
        device = None if core.device < 0 else core.device
        memory = GpuMemory(nbytes, None, ptr=ptr, device=device, home=device)
        memory.keep_core(core, undo.pop_all())
        return memory


def take(undo: Undo, backend: str | None, open_node: Callable[[], Node], **fields: int) -> Any:
    """Have the core take memory in, by ``fields`` of struct core_request; ``undo`` releases it.

    ``backend`` takes it in; None is the first that can. ``open_node`` gives the kernel module's
    node, if that backend may be used; the node stays open as long as the memory. Raises
    BackendUnavailable, InvalidHandle, SizeMismatch, OutOfMemory.
    """
    functions = cuda_functions()
    forced = _backend(backend) if backend else ffi.NULL
    request = ffi.new("struct core_request *", {"fd": -1, **fields})
    if backend in (None, "gdrdrv"):
        request.node = _hold_node(undo, functions, open_node)
    return alone(fork_lock, _take, undo, functions, forced, request)


def _take(undo: Undo, functions: Any, forced: Any, request: Any) -> Any:
    """Called with ``fork_lock`` held, since CUDA may open descriptors meanwhile."""
    return made(undo, lib.core_take_to, functions, forced, request)


def _hold_node(undo: Undo, functions: Any, open_node: Callable[[], Node]) -> Any:
    """The kernel module's node for a request, held until ``undo``; NULL without one."""
    if functions.on_bar and not functions.on_bar():
        return ffi.NULL  # the module cannot pin this simulated memory
    try:
        node = open_node()
    except Error:  # the backend reports it
        return ffi.NULL
    undo.callback(Hold(node).end)
    return node.struct


def take_export(undo: Undo, backend: str, fd: int, nbytes: int = 0, device: int = -1) -> Any:
    """Have the core take exported memory in by its descriptor, which the caller keeps.

    ``nbytes`` and ``device`` are for simulated memory only. Raises InvalidHandle, DriverError.
    """
    return made(undo, lib.core_take_export_to, _backend(backend), fd, nbytes, device)


@functools.cache
def _backend(name: str) -> Any:
    """The core's ``struct core_backend`` with this name."""
    return lib.core_backend_named(name.encode())
