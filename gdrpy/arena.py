"""An arena: blocks carved out of a region, by Python or by a library that takes an allocator."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gdrpy import cuda
from gdrpy._core._mapping import alone
from gdrpy.arrays.shown import Shown
from gdrpy.common.arguments import as_int, as_range, as_size
from gdrpy.common.resource import Hold, Resource
from gdrpy.common.sizes import counted, told_size
from gdrpy.errors import Detached, OutOfMemory
from gdrpy.memory.memory import settle
from gdrpy.memory.page_locked import page_locked
from gdrpy.memory.view import Mapping
from gdrpy.region import Region, alloc, wait_for_work

#: A range of the region: its offset and its bytes.
_Piece = tuple[int, int]

#: Addresses and sizes of blocks are multiples of this many bytes.
ALIGNMENT = 512


class Functions(NamedTuple):
    """An arena for C code: a shared library, and the names of this arena's functions in it.

    ``void *allocate(ssize_t nbytes, int device, cudaStream_t stream)`` returns NULL if there is no
    room, ``void free(void *block, ssize_t nbytes, int device, cudaStream_t stream)`` waits for the
    stream first.
    """

    library: str
    allocate: str
    free: str


class Arena(Resource):
    """Blocks of memory in a region, or in a part of it.

    Args:
        region: The region. It needs its GPU view.
        offset: Where the part begins.
        nbytes: The size of the part; None is all the rest.

    Blocks are found by first fit; their addresses
    and sizes are multiples of 512 bytes, and freed neighbours are merged. Allocating makes no CUDA
    call and does not touch the memory. Threads may share an arena, and C code may use it at the
    same time through :attr:`functions`. A process has at most 64 arenas.

    The region stays open as long as its arena. :meth:`close` raises BufferError while there are
    blocks; the end of a ``with`` block warns StillInUse instead. Such an arena, and a dropped one,
    keeps the memory until its last block is freed. This is noticed when a region is closed or the
    next arena is made. An arena that slept frees its host memory when it is closed, which waits for
    all running kernels.

    Raises MissingView without the GPU view, ValueError outside the region, Sealed and ReadOnly
    if the region may not be written, OutOfMemory if 64 arenas are open.
    """

    _again = "make another one, of a region that it opened itself"
    _elsewhere = "send the region, and the offsets of the blocks in it"

    def __init__(self, region: Shown, offset: int = 0, nbytes: int | None = None) -> None:
        start, size = as_range("Arena", offset, nbytes, region.nbytes)
        if not size:
            raise ValueError(f"Arena: there are 0 bytes at offset {start}")
        ptr = region.ptr + start
        region._check_writable("Arena")
        release_abandoned()
        library, driver = _library(), _driver(region.device)
        hold = Hold(region._memory, lasting=True)
        slot = library.gdrpy_arena_open(ptr, size, region.device, driver)
        if slot < 0:
            raise OutOfMemory(
                "Arena: this process already has 64 arenas, the limit: close an unused one"
            )
        self.region = region
        self.offset = start
        self.nbytes = size
        self._slot = slot
        self._hold = hold
        self._turn = threading.Lock()  # of those who sleep and wake
        self._sleeping = False
        self._host: Mapping | None = None
        #: The pieces of the region that host memory has.
        self._kept: list[_Piece] = []
        super().__init__()

    @classmethod
    def of(cls, memory: Shown | Arena) -> Arena:
        """The arena itself, or a new one over all of a region."""
        return memory if isinstance(memory, Arena) else cls(memory)

    def allocate(self, nbytes: int) -> int:
        """The GPU address of a new block of ``nbytes`` bytes, whose contents are undefined.

        Raises OutOfMemory if no free piece is large enough, Detached while the arena sleeps,
        ValueError, Closed.
        """
        call = "Arena.allocate"
        size = as_size(call, nbytes)
        with self._lock:
            self._check(call)
            if self._sleeping:
                raise Detached(f"{call}: the arena sleeps: wake() it first")
            address = int(_library().gdrpy_arena_allocate(self._slot, size))
        if not address:
            usage = self._usage()
            raise OutOfMemory(
                f"{call}: no free piece has {told_size(size)}: {told_size(usage.used)} of "
                f"{told_size(self.nbytes)} are in use in {counted(usage.blocks, 'block')}, and the "
                f"largest free piece has {told_size(usage.largest)}"
            )
        return address

    def require_current(self, call: str) -> None:
        """Raise ValueError unless the region's device is current, as libraries expect."""
        current = int(cuda.call("cuCtxGetDevice"))
        if current != self.region.device:
            raise ValueError(
                f"{call}: the current device is {current}, and the region lies on "
                f"{self.region.device}: make that one current first"
            )

    @property
    def sleeping(self) -> bool:
        """Whether :meth:`sleep` gave the memory back, and :meth:`wake` has not brought it back."""
        self._check("Arena.sleeping")
        return self._sleeping

    def sleep(self, keep: str | None = "host", *, unchanged: bool = False) -> None:
        """Give the region's memory back; the blocks keep their addresses for :meth:`wake`.

        Args:
            keep: "host" copies the blocks to page-locked host memory, which the arena keeps for
                its next sleep. None drops their contents, and that host memory.
            unchanged: The promise that no block was written since the last :meth:`wake`. The copies
                of the last sleep then serve again, if the blocks are the same ones.

        It waits for the GPU as :meth:`Region.detach` does, and does nothing for an arena that
        sleeps. Meanwhile tensors and arrays in the blocks are invalid, and may be freed. Make no
        new ones. What lies in the region outside the blocks is lost, and other processes that
        opened the region keep the old memory: they no longer share it after wake().

        Raises ValueError unless the arena has the whole of a region of :func:`gdrpy.alloc`,
        OutOfMemory, and as detach(). The arena is awake then.
        """
        call = "Arena.sleep"
        if keep not in ("host", None):
            raise ValueError(f'{call}: keep must be "host" or None, not {keep!r}')
        self._check(call)
        with self._turn:
            self._check(call)
            region = self._whole_region(call)
            if self._sleeping and region.detached:
                return
            if not self._sleeping:
                alone(region._lock, region._detachable, call)
                wait_for_work(call, [region])
                pieces = self._pieces() if keep else []
                if not unchanged or pieces != self._kept:
                    self._keep(pieces)
            before = self._sleeping
            try:
                self._sleeping = True
                region.detach()
            except BaseException:
                self._sleeping = before or region.detached
                raise

    def wake(self) -> None:
        """Bring memory back to the addresses of a sleeping arena, with the contents that were kept.

        It does nothing for an arena that is awake. Raises OutOfMemory, and as :func:`gdrpy.alloc`
        and :meth:`Region.attach`. The arena sleeps on then, and loses nothing.
        """
        call = "Arena.wake"
        self._check(call)
        with self._turn:
            self._check(call)
            if not self._sleeping:
                return
            region = self._whole_region(call)
            try:
                if region.detached:
                    with alloc(region.nbytes, region.device, gpu=False, cpu=False) as memory:
                        region.attach(memory._memory.fd)
                    region._memory.created = True
                for offset, part in self._host_parts(self._kept):
                    region.write(part, offset)
            except BaseException:
                with suppress(Exception):  # the next try writes everything again
                    region.detach()
                raise
            self._sleeping = False

    def _whole_region(self, call: str) -> Region:
        """The region, if it may sleep. Raises ValueError."""
        region = self.region
        own = self._sleeping or region._memory.created
        if isinstance(region, Region) and own and self.nbytes == region.nbytes:
            return region
        raise ValueError(
            f"{call}: the arena must have the whole of a region of gdrpy.alloc(), not "
            f"{told_size(self.nbytes)} at offset {self.offset} of {region!r}"
        )

    def _pieces(self) -> list[_Piece]:
        """Where the region has blocks, and how long; neighbours are one piece."""
        blocks = (_Block * self._usage().blocks)()
        count = int(_library().gdrpy_arena_blocks(self._slot, blocks, len(blocks)))
        pieces: list[_Piece] = []
        for block in blocks[:count]:
            start, end = block.start - self.region.ptr, block.end - self.region.ptr
            if pieces and sum(pieces[-1]) == start:
                start = pieces.pop()[0]
            pieces.append((start, end - start))
        return pieces

    def _keep(self, pieces: list[_Piece]) -> None:
        """Copy pieces of the region to host memory."""
        nbytes = sum(size for _, size in pieces)
        self._kept = []
        if not nbytes or (self._host is not None and self._host.nbytes < nbytes):
            self._drop_host()
        if self._host is None and nbytes:
            self._host = page_locked(nbytes, self.region.device)
        for offset, part in self._host_parts(pieces):
            self.region.readinto(part, offset)
        self._kept = pieces

    def _drop_host(self) -> None:
        host, self._host, self._kept = self._host, None, []
        if host is not None:
            host.close()

    def _host_parts(self, pieces: list[_Piece]) -> Iterator[tuple[int, memoryview]]:
        """The offset of each piece in the region, and its bytes in host memory."""
        at = 0
        for offset, size in pieces:
            assert self._host is not None
            with memoryview(self._host)[at : at + size] as part:
                yield offset, part
            at += size

    def free(self, ptr: int, stream: Any = None) -> None:
        """Free the block at a GPU address, which may be reused at once.

        With a ``stream``, as in :meth:`Flag.stream_wait`, the call waits first for the work queued
        on it. Raises ValueError if no block begins at ``ptr``, Closed.
        """
        call = "Arena.free"
        address = as_int(call, "ptr", ptr)
        self._check(call)
        if stream is not None:
            assert self.region.device is not None
            with cuda.context(self.region.device):
                cuda.call("cuStreamSynchronize", cuda.stream_handle(stream))
        with self._lock:
            self._check(call)
            freed = 0 <= address < 1 << 64 and not _library().gdrpy_arena_free(self._slot, address)
        if not freed:
            raise ValueError(f"{call}: no block of this arena begins at {address:#x}")

    @property
    def functions(self) -> Functions:
        """The same arena for C code, such as torch's CUDAPluggableAllocator."""
        self._check("Arena.functions")
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
        self._check("asking how full an Arena is")
        usage = _Usage()
        _library().gdrpy_arena_usage(self._slot, usage)
        return usage

    def _release(self) -> None:
        usage = self._usage()
        if not usage.blocks:
            self._drop_host()
        if not _give_back(self._slot, self._hold):
            raise BufferError(
                f"Arena.close: {usage.blocks} blocks with {usage.used} bytes are in use: delete "
                f"the tensors and arrays in them first, and have their library free what it caches"
            )

    def _release_with_users(self) -> bool:
        self._drop_host()
        if _give_back(self._slot, self._hold):
            return False
        _abandoned.append((self._slot, self._hold))
        return True

    def __del__(self) -> None:
        if self._closed or self._finalizing() or self._forked():
            return
        self._closed = True
        self._release_with_users()

    def __repr__(self) -> str:
        if self.closed:
            return "<Arena CLOSED>"
        usage = self._usage()
        return (
            f"<Arena of {self.nbytes} bytes at offset {self.offset} of {self.region!r}, "
            f"{usage.used} used in {usage.blocks} blocks>"
        )


class _Block(ctypes.Structure):
    start: int
    end: int
    _fields_ = [(name, ctypes.c_uint64) for name in ("start", "end")]


class _Usage(ctypes.Structure):
    used: int
    blocks: int
    largest: int
    _fields_ = [(name, ctypes.c_uint64) for name in ("used", "blocks", "largest")]


_PATH = Path(__file__).parent / "lib" / "libgdrpy_arena.so"

#: Slots of arenas that were dropped with blocks in use, and their holds on the memory.
_abandoned: list[tuple[int, Hold]] = []


def _give_back(slot: int, hold: Hold) -> bool:
    """Free the slot unless it has blocks; returns whether it was freed."""
    if _library().gdrpy_arena_close(slot) == -errno.EBUSY:
        return False
    hold.end()
    return True


def release_abandoned() -> None:
    """Close dropped arenas whose last block has been freed."""
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
def _library() -> Any:
    library = ctypes.CDLL(str(_PATH))
    library.gdrpy_arena_open.argtypes = (
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_int,
        ctypes.POINTER(_Driver),
    )
    library.gdrpy_arena_allocate.argtypes = (ctypes.c_int, ctypes.c_uint64)
    library.gdrpy_arena_allocate.restype = ctypes.c_uint64
    library.gdrpy_arena_free.argtypes = (ctypes.c_int, ctypes.c_uint64)
    library.gdrpy_arena_blocks.argtypes = (
        ctypes.c_int,
        ctypes.POINTER(_Block),
        ctypes.c_uint64,
    )
    library.gdrpy_arena_blocks.restype = ctypes.c_uint64
    library.gdrpy_arena_usage.argtypes = (ctypes.c_int, ctypes.POINTER(_Usage))
    return library


class _Driver(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "push", "wait", "pop")]


def _driver(device: int | None) -> _Driver:
    """The driver's functions that C code calls before it frees a block on a device."""
    assert device is not None
    context = int(cuda.primary_context(device))
    driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    functions = driver.cuCtxPushCurrent_v2, driver.cuStreamSynchronize, driver.cuCtxPopCurrent_v2
    return _Driver(context, *(ctypes.cast(one, ctypes.c_void_p) for one in functions))
