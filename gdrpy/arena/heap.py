"""A heap: blocks of GPU memory that take and free it one by one, at addresses that stay."""

from __future__ import annotations

import errno
from typing import Any

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.arena.blocks import NOT_KEPT, Blocks, Memory, functions, library
from gdrpy.common.sizes import counted, told_size
from gdrpy.errors import Detached, OutOfMemory
from gdrpy.memory import reclaim, vmm
from gdrpy.memory.view import Mapping

#: The address range, in sizes of the device's memory: free pieces between blocks take some of it.
_SPREAD = 4


class Heap(Blocks):
    """Blocks of GPU memory that take and free it one by one, and sleep at their addresses.

    For a library that takes an allocator, such as torch, where the size is not known before:
    :class:`gdrpy.torch.Pool` takes a heap as it takes an arena. The blocks have no CPU view.

    Args:
        device: The GPU, named as for :func:`gdrpy.alloc`.

    Addresses and sizes of blocks are multiples of 2 MiB. Threads may share a heap, and C code may
    use it at the same time through :attr:`functions`. A process has at most 64 arenas and heaps.

    :meth:`close` raises BufferError while there are blocks; the end of a ``with`` block warns
    StillInUse instead. Such a heap, and a dropped one, keeps the memory until its last block is
    freed. A heap that slept frees its host memory when it is closed, which waits for all running
    kernels.

    Raises NotFound, OutOfMemory if 64 arenas and heaps are open.
    """

    _again = "make another one"
    _elsewhere = "send a region instead"

    def __init__(self, device: Any = 0) -> None:
        ordinal = cuda.ordinal("Heap", device)
        total = int(cuda.call("cuDeviceTotalMem", cuda.device(ordinal)))
        with Undo() as undo:
            nbytes = _SPREAD * vmm.rounded(total, ordinal)
            self._start = start = vmm.reserve(undo, "Heap", nbytes, ordinal)
            super().__init__(start, nbytes, ordinal, undo.pop_all().close, _memory(ordinal))
        #: The host memory that has the copies of the last sleep, if that was not broken off.
        self._copied: Mapping | None = None

    def _is_asleep(self) -> bool:
        return bool(self._usage().sleeping)

    def _without_room(self, call: str, size: int) -> int:
        with self._turn:  # it may have slept when the library was asked
            if self._is_asleep():
                raise Detached(f"{call}: the heap sleeps: wake() it first")
            reclaim.reclaim(self.device, wait=True)
            address = int(library().gdrpy_arena_allocate(self._slot, size))
        if address:
            return address
        usage = self._usage()
        raise OutOfMemory(
            f"{call}: GPU {self.device} has no {told_size(size)} left: this heap has "
            f"{told_size(usage.used)} in {counted(usage.blocks, 'block')}"
        )

    def sleep(self, keep: str | None = "host", *, unchanged: bool = False) -> None:
        """Give the memory back; the blocks keep their addresses for :meth:`wake`.

        Args:
            keep: "host" copies the blocks to page-locked host memory, which the heap keeps for its
                next sleep. None drops their contents, and that host memory.
            unchanged: The promise that no block was written since the last :meth:`wake`. The copies
                of the last sleep then serve again, if there are no new blocks.

        It waits for the GPU, and does nothing for a heap that sleeps. Meanwhile tensors in the
        blocks are invalid, and may be freed; new blocks are refused.

        Raises OutOfMemory (of the host), BufferError while CUDA cannot tell whether the GPU is
        done, CudaError. The heap is awake then.
        """
        call = "Heap.sleep"
        self._check_sleep(call, keep)
        with self._turn:
            self._check(call)
            if self._is_asleep():
                return
            if not reclaim.wait((self.device,)):
                raise BufferError(
                    f"{call}: CUDA cannot tell now whether the GPU is done with the memory, as "
                    f"while a graph is captured: sleep after that"
                )
            result, wanted = -errno.ENOSPC, keep is not None
            while result == -errno.ENOSPC:  # another thread may make a block in between
                self._make_host(self._usage().used if wanted else 0)
                host, room = (self._host.address, self._host.nbytes) if self._host else (None, 0)
                again = unchanged and self._copied is self._host
                self._copied = None
                result = library().gdrpy_arena_sleep(self._slot, wanted, host, room, again)
            self._require(call, result)
            self._copied = self._host

    def wake(self) -> None:
        """Bring memory back to the blocks of a sleeping heap, with the contents that were kept.

        It does nothing for a heap that is awake. Raises OutOfMemory, CudaError. The heap sleeps on
        then, and loses nothing.
        """
        call = "Heap.wake"
        self._check(call)
        with self._turn:
            self._check(call)
            reclaim.reclaim(self.device)
            address = None if self._host is None else self._host.address
            result = library().gdrpy_arena_wake(self._slot, address)
            if result and reclaim.reclaim(self.device, wait=True):
                result = library().gdrpy_arena_wake(self._slot, address)
            self._require(call, result)

    def _require(self, call: str, result: int) -> None:
        """Raise unless the library answered 0."""
        if result < 0:
            raise OSError(-result, f"{call}: the CUDA context of GPU {self.device} is gone")
        cuda.check(call, result)

    def contains(self, ptr: int) -> bool:
        """Whether a GPU address lies in the heap's range."""
        self._check("Heap.contains")
        return self._start <= ptr < self._start + self.nbytes

    def kept(self, ptr: int, nbytes: int) -> bytes | None:
        """The bytes that host memory has of a part of a block, while the heap sleeps.

        None if it is awake, or kept nothing. Raises ValueError if no block contains the part.
        """
        call = "Heap.kept"
        self._check(call)
        with self._turn:
            for block in self._blocks():
                if block.start <= ptr and ptr + nbytes <= block.end:
                    if not self._is_asleep() or block.kept == NOT_KEPT:
                        return None
                    assert self._host is not None
                    offset = block.kept + ptr - block.start
                    with memoryview(self._host) as view:
                        return bytes(view[offset : offset + nbytes])
        raise ValueError(f"{call}: no block of this heap has the {nbytes} bytes at {ptr:#x}")

    def __repr__(self) -> str:
        if self.closed:
            return "<Heap CLOSED>"
        usage = self._usage()
        return f"<Heap on GPU {self.device}, {usage.used} used in {counted(usage.blocks, 'block')}>"


def _memory(device: int) -> Memory:
    """The driver's functions for the blocks' own memory."""
    return Memory(
        vmm.granularity(device),
        *vmm.terms(device),
        *functions(
            "cuMemCreate",
            "cuMemRelease",
            "cuMemMap",
            "cuMemSetAccess",
            "cuMemUnmap",
            "cuMemcpyDtoH_v2",
            "cuMemcpyHtoD_v2",
        ),
    )
