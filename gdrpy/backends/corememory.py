"""GPU memory that the C core has taken in."""

from __future__ import annotations

from gdrpy._fd import fork_lock, private
from gdrpy._resource import Undo
from gdrpy.backends.core import call, cuda_functions, ffi, lib, obtain, text
from gdrpy.backends.driver import warn_if_untested
from gdrpy.backends.memory import Memory
from gdrpy.errors import Error
from gdrpy.mapping import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gdrpy._core._mapping import Descriptor
    from gdrpy._resource import Closable
    from gdrpy.backends.node import Node


class CoreMemory(Memory):
    """A ``struct gdr_memory``: it stays, also when it is closed, until its last mapping is gone."""

    _shared: Descriptor | None = None

    def __init__(self, undo: Undo, memory: Any) -> None:
        """``undo`` releases it."""
        super().__init__(undo, memory.nbytes, text(memory.backend.name), text(memory.location))
        self._memory = memory
        #: The device that it lies on; None where that is not known.
        self.device: int | None = None if memory.device < 0 else memory.device
        #: Bytes that a pin is rounded out to.
        self.page_size = int(memory.page_size)
        #: Whether it keeps the GPU memory even when its owner frees it.
        self.persistent = bool(memory.persistent)
        #: The kernel module's name for the pin, in the events of its node; 0 for other memory.
        self.handle = int(memory.handle)

    def map(
        self, offset: int, nbytes: int, readonly: bool, ptr: int | None, device: int | None
    ) -> Mapping:
        """As :meth:`Memory.map`. Raises Revoked, PermissionDenied (shared read-only) too."""
        view = ffi.new("struct gdr_view *")
        self.hold()
        try:
            call(lib.gdr_memory_map, self._memory, offset, nbytes, readonly, view)
        except BaseException:
            self.let_go()
            raise

        def unmap() -> None:
            try:
                call(lib.gdr_memory_unmap, self._memory, view)
            finally:
                self.let_go()

        address = int(ffi.cast("uintptr_t", view.map.address))
        return Mapping(address, nbytes, view.kind, readonly, unmap, self.backend, ptr, device)

    def close_with(self, allocation: Closable) -> None:
        """As :meth:`Memory.close_with`; a mapping that still ends in another thread goes first."""
        with self._lock:
            assert self._undo is not None
            self._undo.callback_last(allocation.close)
            self.close()

    @property
    def revoked(self) -> bool:
        """Whether the GPU memory was freed under it."""
        with self._lock:
            self._check("asking whether memory was revoked")
            return bool(lib.gdr_memory_revoked(self._memory))

    @property
    def devices(self) -> tuple[int, ...]:
        """The GPUs that reach it at its address."""
        return () if self.device is None else (self.device,)

    @property
    def fd(self) -> int:
        """A descriptor by which other processes may map it, closed with it. Raises as export()."""
        with fork_lock, self._lock:  # in this order: who holds the first may end a mapping
            self._check("sharing memory")
            if self._shared is None:
                assert self._undo is not None
                self._shared = self._undo.keep(private(self.export, False))
            return self._shared.fileno()

    def export(self, readonly: bool) -> int:
        """A new descriptor by which other processes may map it. Raises BackendUnavailable."""
        with self._lock:
            self._check("sharing memory")
            return call(lib.gdr_memory_share, self._memory, readonly)


def _own(undo: Undo, memory: Any) -> CoreMemory:
    """What the core has just taken in, as an object; ``undo`` gives back what it needs."""
    undo.callback(call, lib.gdr_memory_release, memory)
    if memory.backend == lib.gdr_backend_named(b"nvrm"):
        warn_if_untested()
    return CoreMemory(undo.pop_all(), memory)


def take(
    backend: str | None,
    open_node: Callable[[], Node],
    *,
    ptr: int,
    nbytes: int,
    fd: int = -1,
    device: int = -1,
    revocable: bool = False,
    sigbus: bool = False,
) -> CoreMemory:
    """Take in what a ``struct gdr_request`` says, by a backend or by the first that can.

    ``open_node`` gives the kernel module's node where that may serve; it stays open as long as the
    memory. Raises BackendUnavailable, InvalidHandle, SizeMismatch, OutOfMemory.
    """
    functions = cuda_functions()
    forced = lib.gdr_backend_named(backend.encode()) if backend else ffi.NULL
    request = ffi.new(
        "struct gdr_request *",
        {
            "ptr": ptr,
            "nbytes": nbytes,
            "fd": fd,
            "device": device,
            "revocable": revocable,
            "sigbus": sigbus,
        },
    )
    with Undo() as undo:
        if backend in (None, "gdrdrv"):
            request.node = _hold_node(undo, functions, open_node)
        with fork_lock:  # CUDA may open descriptors on the way
            memory = obtain(lib.gdr_take, functions, forced, request)
        return _own(undo, memory)


def _hold_node(undo: Undo, functions: Any, open_node: Callable[[], Node]) -> Any:
    """The kernel module's node for a request, held until ``undo``; NULL where there is none."""
    if functions.on_bar and not functions.on_bar():
        return ffi.NULL  # simulated memory that no module can pin
    try:
        node = open_node()
    except Error:  # the backend says it
        return ffi.NULL
    node.hold()
    undo.callback(node.let_go)
    return node.struct


def take_export(backend: str, fd: int, nbytes: int = 0, device: int = -1) -> CoreMemory:
    """Take in exported memory by its descriptor alone, which stays the caller's.

    ``nbytes`` and ``device`` are those of simulated memory. Raises InvalidHandle, DriverError.
    """
    with Undo() as undo:
        chosen = lib.gdr_backend_named(backend.encode())
        return _own(undo, obtain(chosen.take_export, fd, nbytes, device))
