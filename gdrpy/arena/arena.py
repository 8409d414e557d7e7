"""An arena: blocks carved out of a region, by Python or by a library that takes an allocator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from gdrpy.arena.blocks import Blocks
from gdrpy.arrays.shown import Shown
from gdrpy.common.arguments import as_range
from gdrpy.common.resource import Hold, Parts
from gdrpy.common.sizes import counted, told_size
from gdrpy.errors import OutOfMemory
from gdrpy.memory.memory import ATTACH
from gdrpy.region import Region, alloc, wait_for_work

#: A range of the region: its offset and its bytes.
_Piece = tuple[int, int]


class Arena(Blocks):
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

    Raises MissingView without the GPU view, ValueError outside the region or where it has another
    arena, Sealed and ReadOnly
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
        assert region.device is not None
        hold = Hold(region._memory, Parts)
        super().__init__(ptr, size, region.device, hold.end)
        self.region = region
        self.offset = start
        self._sleeping = False
        #: The pieces of the region that host memory has.
        self._kept: list[_Piece] = []

    @classmethod
    def of(cls, memory: Shown | Arena) -> Arena:
        """The arena itself, or a new one over all of a region."""
        return memory if isinstance(memory, Arena) else cls(memory)

    def _is_asleep(self) -> bool:
        return self._sleeping

    def _without_room(self, call: str, size: int) -> int:
        usage = self._usage()
        raise OutOfMemory(
            f"{call}: no free piece has {told_size(size)}: {told_size(usage.used)} of "
            f"{told_size(self.nbytes)} are in use in {counted(usage.blocks, 'block')}, and the "
            f"largest free piece has {told_size(usage.largest)}"
        )

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
        self._check_sleep(call, keep)
        with self._turn:
            self._check(call)
            region = self._whole_region(call)
            if self._sleeping and region.detached:
                return
            if not self._sleeping:
                region._check_detachable(call)
                wait_for_work(call, [region])
                pieces = self._pieces() if keep else []
                if not unchanged or pieces != self._kept:
                    self._keep(pieces)
            before = self._sleeping
            try:
                self._sleeping = True
                region.detach()
                region._remedy = "wake() its arena first"
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
            region._remedy = ATTACH

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
        pieces: list[_Piece] = []
        for block in self._blocks():
            start, end = block.start - self.region.ptr, block.end - self.region.ptr
            if pieces and sum(pieces[-1]) == start:
                start = pieces.pop()[0]
            pieces.append((start, end - start))
        return pieces

    def _keep(self, pieces: list[_Piece]) -> None:
        """Copy pieces of the region to host memory."""
        self._kept = []
        self._make_host(sum(size for _, size in pieces))
        for offset, part in self._host_parts(pieces):
            self.region.readinto(part, offset)
        self._kept = pieces

    def _host_parts(self, pieces: list[_Piece]) -> Iterator[tuple[int, memoryview]]:
        """The offset of each piece in the region, and its bytes in host memory."""
        at = 0
        for offset, size in pieces:
            assert self._host is not None
            with memoryview(self._host)[at : at + size] as part:
                yield offset, part
            at += size

    def __repr__(self) -> str:
        if self.closed:
            return "<Arena CLOSED>"
        usage = self._usage()
        return (
            f"<Arena of {self.nbytes} bytes at offset {self.offset} of {self.region!r}, "
            f"{usage.used} used in {usage.blocks} blocks>"
        )
