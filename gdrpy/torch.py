"""torch tensors in regions: allocated there, or shared by name with other processes."""

from __future__ import annotations

import functools
from collections import abc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.arena import Arena, Functions
from gdrpy.arrays.array import Array
from gdrpy.arrays.interop import packed_array
from gdrpy.arrays.viewed import Viewed
from gdrpy.common.resource import Resource
from gdrpy.errors import BackendUnavailable

if TYPE_CHECKING:
    from gdrpy.broker.client.broker import Broker

__all__ = ["Pool", "attach", "share"]


class Pool(Resource):
    """A torch memory pool for tensors in a region or an arena.

    Tensors made inside ``with pool.use():`` lie in the region: parameters, buffers, caches,
    results. torch takes memory in segments: of 2 MiB for tensors under 1 MiB, of 20 MiB for tensors
    under 10 MiB, otherwise the size rounded up to 2 MiB. It raises torch.OutOfMemoryError if the
    region has no room for a segment.

    Tensors keep the memory, even when the pool is dropped. :meth:`close` raises BufferError while
    there are tensors of the pool; it leaves an arena that the caller passed open, with its tensors.
    Threads may share a pool.

    Raises BackendUnavailable if torch has no CUDA, and on the simulated GPU.
    """

    _again = "make another one, of a region that it opened itself"
    _elsewhere = "send the region, and Pool.array(tensor)'s shape, dtype and offset"

    def __init__(self, memory: Viewed | Arena) -> None:
        if cuda.simulated() or not torch.cuda.is_available():
            raise BackendUnavailable(
                "Pool: torch has memory pools on real GPUs only, in its CUDA builds: here, make "
                "tensors of a region one by one, by torch.from_dlpack(region.array(...))"
            )
        with Undo() as undo:
            self.arena = Arena.of(memory)
            self._own = self.arena is not memory
            if self._own:
                undo.keep(self.arena)
            self._pool: Any = None
            _allocator(self.arena.functions)
            undo.forget()
        super().__init__()

    @property
    def region(self) -> Viewed:
        """The region that the tensors lie in."""
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
        """Inside the block, this thread's tensors on the region's device are made in the region."""
        with torch.cuda.use_mem_pool(self.mem_pool, device=self.region.device):
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


@functools.cache
def _allocator(functions: Functions) -> Any:
    """torch's allocator object, kept here because torch does not keep it for its segments."""
    return torch.cuda.memory.CUDAPluggableAllocator(*functions).allocator()


def share(
    broker: Broker,
    name: str,
    tensors: torch.nn.Module | abc.Mapping[str, torch.Tensor],
    device: Any = None,
    **options: Any,
) -> dict[str, torch.Tensor]:
    """Publish a copy of a module's state, or of named tensors, and return the shared tensors.

    They lie in one region of the broker, laid out like a safetensors file, by default on the GPU of
    the first tensor that is on one, else on GPU 0; ``options`` are those of ``Broker.put_tensors``.
    :func:`attach` gives any process the same memory.
    ``module.load_state_dict(share(broker, name, module), assign=True)`` makes this process use the
    shared copy and free its own.

    Raises TypeError for values that are not tensors and for element types that the safetensors
    format lacks, and the errors of put_tensors.
    """
    state = tensors.state_dict() if isinstance(tensors, torch.nn.Module) else tensors
    for key, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"share: {key!r} is a {type(tensor).__name__}, not a tensor: leave it out"
            )
    packed = {key: tensor.detach().contiguous() for key, tensor in state.items()}
    if device is None:
        on_gpu = (one.device.index or 0 for one in packed.values() if one.is_cuda)
        device = next(map(cuda.uuid, on_gpu), 0)
    return _tensors(broker.put_tensors(name, packed, device, **options))


def attach(
    broker: Broker, name: str, *, gpu: bool = True, wait: float | None = None
) -> dict[str, torch.Tensor]:
    """The named tensors in a region that :func:`share` or ``put_tensors`` published.

    No byte is copied: ``module.load_state_dict(attach(broker, name), assign=True)`` makes a module
    use the shared memory, on the GPU, or with ``gpu=False`` through the CPU view. The tensors keep
    the region. Attach again to get a new version of the name.

    Raises NotFound, ValueError if the region holds no tensors, and the errors of ``Broker.get``.
    """
    return _tensors(broker.get(name, gpu=gpu, cpu=True, wait=wait))


def _tensors(region: Any) -> dict[str, torch.Tensor]:
    return {name: torch.from_dlpack(array) for name, array in region.tensors().items()}
