"""The blocks of arenas and heaps, for Python and for C code."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gdrpy import cuda
from gdrpy.common.arguments import as_int, as_size
from gdrpy.common.resource import Resource
from gdrpy.common.sizes import counted
from gdrpy.errors import CudaError, Detached, OutOfMemory
from gdrpy.memory.captures import is_captured
from gdrpy.memory.memory import settle, settle_all
from gdrpy.memory.page_locked import page_locked
from gdrpy.memory.view import Mapping

#: Gives the memory or the addresses below blocks back.
_End = Callable[[], None]


class Functions(NamedTuple):
    """An arena or a heap for C code: a shared library, and the names of its functions there.

    ``void *allocate(ssize_t nbytes, int device, cudaStream_t stream)`` returns NULL if there is no
    room, ``void free(void *block, ssize_t nbytes, int device, cudaStream_t stream)`` waits for the
    stream first.
    """

    library: str
    allocate: str
    free: str


class Blocks(Resource, ABC):
    """Blocks in a range of a device's addresses, which can give their memory back and wake."""

    def __init__(
        self, start: int, nbytes: int, device: int, end: _End, memory: Memory | None = None
    ) -> None:
        """``end`` runs after the last block is gone. ``memory`` gives each block its own."""
        release_abandoned()
        slot = library().gdrpy_arena_open(start, nbytes, device, _driver(device), memory)
        if slot == -errno.EEXIST:
            raise ValueError(
                f"{type(self).__name__}: another arena has part of these {nbytes} bytes at "
                f"{start:#x}: share that one, or take another part of the region"
            )
        if slot < 0:
            raise OutOfMemory(
                f"{type(self).__name__}: this process already has 64 arenas and heaps, the limit: "
                f"close an unused one"
            )
        self.nbytes = nbytes
        self.device = device
        self._slot = slot
        self._end = end
        self._turn = threading.Lock()  # of those who sleep and wake
        self._host: Mapping | None = None
        super().__init__()

    def allocate(self, nbytes: int) -> int:
        """The GPU address of a new block of ``nbytes`` bytes, whose contents are undefined.

        Raises OutOfMemory without room for it, Detached while it sleeps, ValueError, Closed.
        """
        call = f"{type(self).__name__}.allocate"
        size = as_size(call, nbytes)
        with self._lock:
            self._check(call)
            if self._is_asleep():
                raise Detached(f"{call}: the {self._kind} sleeps: wake() it first")
            address = int(library().gdrpy_arena_allocate(self._slot, size))
        return address or self._without_room(call, size)

    @abstractmethod
    def _without_room(self, call: str, size: int) -> int:
        """Find room after all for a block, or raise OutOfMemory."""

    @property
    def _kind(self) -> str:
        return type(self).__name__.lower()

    def require_current(self, call: str) -> None:
        """Raise ValueError unless the blocks' device is current, as libraries expect."""
        current = int(cuda.call("cuCtxGetDevice"))
        if current != self.device:
            raise ValueError(
                f"{call}: the current device is {current}, and the memory lies on {self.device}: "
                f"make that one current first"
            )

    def free(self, ptr: int, stream: Any = None) -> None:
        """Free the block at a GPU address, which may be reused at once.

        With a ``stream``, as in :meth:`Flag.stream_wait`, the call waits first for the work queued
        on it. Raises ValueError if no block begins at ``ptr``, BufferError while the stream is
        captured into a CUDA graph, Closed.
        """
        call = f"{type(self).__name__}.free"
        address = as_int(call, "ptr", ptr)
        self._check(call)
        if stream is not None:
            handle = cuda.stream_handle(stream)
            with cuda.context(self.device), cuda.relaxed():
                if is_captured(handle):
                    raise BufferError(
                        f"{call}: the stream is captured into a CUDA graph, and cannot be waited "
                        f"for: free the block at {address:#x} after that"
                    )
                cuda.call("cuStreamSynchronize", handle)
        with self._lock:
            self._check(call)
            freed = 0 <= address < 1 << 64 and not library().gdrpy_arena_free(self._slot, address)
        if not freed:
            raise ValueError(f"{call}: no block of this {self._kind} begins at {address:#x}")

    @property
    def sleeping(self) -> bool:
        """Whether ``sleep`` gave the memory back, and ``wake`` has not brought it back."""
        self._check(f"{type(self).__name__}.sleeping")
        return self._is_asleep()

    @abstractmethod
    def _is_asleep(self) -> bool:
        """Whether the memory was given back."""

    def _check_sleep(self, call: str, keep: str | None) -> None:
        if keep not in ("host", None):
            raise ValueError(f'{call}: keep must be "host" or None, not {keep!r}')
        self._check(call)

    def _make_host(self, nbytes: int) -> None:
        """Have host memory of at least ``nbytes`` bytes; of 0, none."""
        if not nbytes or (self._host is not None and self._host.nbytes < nbytes):
            self._drop_host()
        if self._host is None and nbytes:
            self._host = page_locked(nbytes, self.device)

    def _drop_host(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.close()

    @property
    def functions(self) -> Functions:
        """The same blocks for C code, such as torch's CUDAPluggableAllocator."""
        self._check(f"{type(self).__name__}.functions")
        names = (f"gdrpy_arena_{what}_{self._slot}" for what in ("alloc", "free"))
        return Functions(str(_PATH), *names)

    @property
    def used(self) -> int:
        """Bytes in blocks."""
        return int(self._usage().used)

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return int(self._usage().blocks)

    def _usage(self) -> _Usage:
        self._check(f"{type(self).__name__}.used")
        usage = _Usage()
        library().gdrpy_arena_usage(self._slot, usage)
        return usage

    def _blocks(self) -> list[Block]:
        """The blocks by address."""
        blocks = (Block * self._usage().blocks)()
        count = int(library().gdrpy_arena_blocks(self._slot, blocks, len(blocks)))
        return blocks[:count]

    def close(self) -> None:
        """Release everything. May be called again, and does nothing in a forked child."""
        if not self.closed and not self._forked():
            settle_all()
        super().close()

    def _release(self) -> None:
        usage = self._usage()
        if not usage.blocks:
            self._drop_host()
        if not _give_back(self._slot, self._end):
            raise BufferError(
                f"{type(self).__name__}.close: {counted(usage.blocks, 'block')} with {usage.used} "
                f"bytes in use: delete the tensors and arrays in them first, and have their "
                f"library free what it caches"
            )

    def _release_with_users(self) -> bool:
        with suppress(CudaError):  # the kernel frees it when the process ends
            self._drop_host()
        if _give_back(self._slot, self._end):
            return False
        _abandoned.append((self._slot, self._end))
        return True

    def __del__(self) -> None:
        if self._closed or self._finalizing() or self._forked():
            return
        self._closed = True
        self._release_with_users()


class Block(ctypes.Structure):
    """A block's addresses, and where host memory has its contents, which may be NOT_KEPT."""

    start: int
    end: int
    kept: int
    _fields_ = [(name, ctypes.c_uint64) for name in ("start", "end", "kept")]


NOT_KEPT = (1 << 64) - 1


class Memory(ctypes.Structure):
    """The driver's functions that give each block memory of its own."""

    _fields_ = [
        ("unit", ctypes.c_uint64),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "properties",
                "access",
                "create",
                "release",
                "map",
                "set_access",
                "unmap",
                "to_host",
                "from_host",
            )
        ),
    ]


class _Usage(ctypes.Structure):
    used: int
    blocks: int
    largest: int
    sleeping: int
    _fields_ = [(name, ctypes.c_uint64) for name in ("used", "blocks", "largest", "sleeping")]


_PATH = Path(__file__).parent.parent / "lib" / "libgdrpy_arena.so"

#: Slots that were dropped with blocks in use, and what ends their hold on the memory.
_abandoned: list[tuple[int, _End]] = []


def _give_back(slot: int, end: _End) -> bool:
    """Free the slot unless it has blocks; returns whether it was freed."""
    if library().gdrpy_arena_close(slot) == -errno.EBUSY:
        return False
    end()
    return True


def release_abandoned() -> None:
    """Close dropped arenas and heaps whose last block has been freed."""
    # Each is taken out first: two threads may run this at once.
    for _ in range(len(_abandoned)):
        try:
            one = _abandoned.pop(0)
        except IndexError:
            return
        if not _give_back(*one):
            _abandoned.append(one)


settle.append(release_abandoned)


@functools.cache
def library() -> Any:
    """The arena library."""
    word, slot = ctypes.c_uint64, ctypes.c_int
    found = ctypes.CDLL(str(_PATH))
    driver, memory = ctypes.POINTER(_Driver), ctypes.POINTER(Memory)
    found.gdrpy_arena_open.argtypes = (word, word, ctypes.c_int, driver, memory)
    found.gdrpy_arena_allocate.argtypes = (slot, word)
    found.gdrpy_arena_allocate.restype = word
    found.gdrpy_arena_free.argtypes = (slot, word)
    found.gdrpy_arena_blocks.argtypes = (slot, ctypes.POINTER(Block), word)
    found.gdrpy_arena_blocks.restype = word
    found.gdrpy_arena_usage.argtypes = (slot, ctypes.POINTER(_Usage))
    flag = ctypes.c_bool
    found.gdrpy_arena_sleep.argtypes = (slot, flag, ctypes.c_void_p, word, flag)
    found.gdrpy_arena_wake.argtypes = (slot, ctypes.c_void_p)
    return found


class _Driver(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "push", "wait", "pop")]


def _driver(device: int) -> _Driver:
    """The driver's functions that C code calls before it frees a block on a device."""
    context = int(cuda.primary_context(device))
    return _Driver(
        context, *functions("cuCtxPushCurrent_v2", "cuStreamSynchronize", "cuCtxPopCurrent_v2")
    )


def functions(*names: str) -> list[int | None]:
    """The addresses of functions of the driver that is loaded."""
    driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    return [ctypes.cast(getattr(driver, name), ctypes.c_void_p).value for name in names]
