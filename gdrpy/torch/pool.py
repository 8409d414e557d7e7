"""A torch memory pool over a region, or over a heap."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.arena.arena import Arena
from gdrpy.arena.blocks import Functions
from gdrpy.arena.heap import Heap
from gdrpy.arrays.array import Array
from gdrpy.arrays.interop import packed_array
from gdrpy.arrays.shown import Shown
from gdrpy.common.resource import Resource
from gdrpy.errors import BackendUnavailable


class Pool(Resource):
    """A torch memory pool for tensors in a region, an arena or a heap.

    Tensors made inside ``with pool.use():`` lie there: parameters, buffers, caches, results. torch
    takes memory in segments: of 2 MiB for tensors under 1 MiB, of 20 MiB for tensors under 10 MiB,
    otherwise the size rounded up to 2 MiB. It raises torch.OutOfMemoryError if there is no room for
    a segment.

    Tensors keep the memory, even when the pool is dropped. :meth:`close` raises BufferError while
    there are tensors of the pool; it leaves an arena or a heap that the caller passed open, with
    its tensors. Threads may share a pool.

    Raises BackendUnavailable if torch has no CUDA, and on the simulated GPU.
    """

    _again = "make another one, of a region that it opened itself"
    _elsewhere = "send the region, and Pool.array(tensor)'s shape, dtype and offset"

    def __init__(self, memory: Shown | Arena | Heap) -> None:
        require_pools("Pool")
        with Undo() as undo:
            #: The :class:`gdrpy.Arena` or :class:`gdrpy.Heap` that the tensors lie in.
            self.arena = memory if isinstance(memory, Heap) else Arena.of(memory)
            self._own = self.arena is not memory
            if self._own:
                undo.keep(self.arena)
            self._pool: Any = None
            _allocator(self.arena.functions)
            undo.forget()
        super().__init__()

    @property
    def region(self) -> Shown:
        """The region that the tensors lie in. Raises ValueError if that is a heap."""
        if not isinstance(self.arena, Arena):
            raise ValueError(f"Pool.region: the tensors lie in {self.arena!r}, not in a region")
        return self.arena.region

    @property
    def mem_pool(self) -> Any:
        """The torch.cuda.MemPool, for other functions that take one."""
        with self._lock:
            self._check("Pool.mem_pool")
            if self._pool is None:
                self._pool = torch.cuda.MemPool(_allocator(self.arena.functions))
            return self._pool

    @contextmanager
    def use(self) -> Iterator[Pool]:
        """Inside the block, this thread's tensors on the memory's device are made there."""
        with torch.cuda.use_mem_pool(self.mem_pool, device=self.arena.device):
            yield self

    def array(self, tensor: torch.Tensor) -> Array:
        """A tensor's elements as an :class:`Array` of the region, with CPU view and offset.

        The Array keeps the region, not the tensor. Raises ValueError for a tensor that does not lie
        in the region or is not contiguous.
        """
        call = "Pool.array"
        self._check(call)
        found = packed_array(call, tensor.detach())
        offset = -1 if found is None else found.address - self.region.ptr
        if found is None or not 0 <= offset <= self.region.nbytes - found.nbytes:
            raise ValueError(
                f"{call}: the tensor of shape {tuple(tensor.shape)} on {tensor.device} does not "
                f"lie in {self.region!r}: make it inside `with pool.use():`"
            )
        return Array(self.region, found.shape, found.dtype, offset)

    def sleep(self, keep: str | None = "host", *, unchanged: bool = False) -> None:
        """Give the memory back; tensors and captured graphs keep their addresses for :meth:`wake`.

        See :meth:`gdrpy.Arena.sleep` and :meth:`gdrpy.Heap.sleep`. Segments of the pool that torch
        has cached are copied too. Make no tensors of the pool meanwhile, and use none.
        """
        self._check("Pool.sleep")
        self.arena.sleep(keep, unchanged=unchanged)

    def wake(self) -> None:
        """Bring memory back, with the contents that were kept."""
        self._check("Pool.wake")
        self.arena.wake()

    def _release(self) -> None:
        # torch frees empty segments when the last reference to its pool goes, and those that become
        # empty later when it empties its cache.
        self._pool = None
        torch.cuda.empty_cache()
        if self._own:
            self.arena.close()

    def _release_with_users(self) -> bool:
        return self._own and self.arena._retire()

    def __repr__(self) -> str:
        return "<Pool CLOSED>" if self.closed else f"<Pool of {self.arena!r}>"


def require_pools(call: str) -> None:
    """Raise BackendUnavailable if torch has no memory pools here."""
    if cuda.simulated() or not torch.cuda.is_available():
        raise BackendUnavailable(
            f"{call}: torch has memory pools on real GPUs only, in its CUDA builds: here, make "
            f"tensors of a region one by one, by torch.from_dlpack(region.array(...))"
        )


@functools.cache
def _allocator(functions: Functions) -> Any:
    """torch's allocator object, kept here because torch does not keep it for its segments."""
    return torch.cuda.memory.CUDAPluggableAllocator(*functions).allocator()
