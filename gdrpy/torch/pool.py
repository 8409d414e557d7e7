"""torch tensors in regions: allocated there, or shared by name with other processes."""

from __future__ import annotations

import functools
import threading
from collections import abc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from gdrpy import cuda
from gdrpy._core._mapping import Undo
from gdrpy.arena import Arena, Functions
from gdrpy.arrays.array import Array
from gdrpy.arrays.interop import packed_array
from gdrpy.arrays.shown import Shown
from gdrpy.broker.client.broker import Broker
from gdrpy.common.resource import Resource
from gdrpy.errors import BackendUnavailable

__all__ = ["Pool", "assign", "attach", "empty_weights", "share"]


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

    def __init__(self, memory: Shown | Arena) -> None:
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
    def region(self) -> Shown:
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

    def sleep(self, keep: str | None = "host", *, unchanged: bool = False) -> None:
        """Give the memory back; tensors and captured graphs keep their addresses for :meth:`wake`.

        See :meth:`gdrpy.Arena.sleep`. Segments of the pool that torch has cached are copied too.
        Make no tensors of the pool meanwhile, and use none.
        """
        self._check("Pool.sleep")
        self.arena.sleep(keep, unchanged=unchanged)

    def wake(self) -> None:
        """Bring memory back, with the contents that were kept: see :meth:`gdrpy.Arena.wake`."""
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

    They lie in one region of the broker, laid out like a safetensors file. Names of one tensor, as
    of tied weights, are names of one shared tensor.

    Args:
        broker: The broker.
        name: The region's name.
        tensors: A module, or tensors by their names.
        device: The GPU, named as for :func:`gdrpy.alloc`. None is that of the first tensor that is
            on one, else GPU 0.
        options: Those of :meth:`gdrpy.Broker.put_tensors`, by keyword.

    :func:`attach` gives any process the same memory. ``assign(module, share(broker, name,
    module))`` makes this process use the shared copy and free its own.

    Raises TypeError for anything else than named tensors, and for element types that the
    safetensors format lacks, ValueError for tensors without memory, and the errors of put_tensors.
    """
    _check_broker("share", broker)
    state = tensors.state_dict() if isinstance(tensors, torch.nn.Module) else tensors
    if not isinstance(state, abc.Mapping):
        raise TypeError(
            f"share: tensors must be a module, or a dict of tensors by name, not "
            f"{type(state).__name__}"
        )
    packed: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    names: dict[Any, str] = {}
    for key, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"share: {key!r} is of type {type(tensor).__name__}, not a tensor: leave it out"
            )
        if tensor.is_meta:
            raise ValueError(
                f"share: {key!r} has no memory (device meta): share a module that was loaded"
            )
        kept = names.setdefault(_place(tensor), key) if tensor.numel() else key
        if kept != key:
            aliases[key] = kept
        else:
            packed[key] = tensor.detach().contiguous()
    if device is None:
        on_gpu = (one.device.index or 0 for one in packed.values() if one.is_cuda)
        device = next(map(cuda.uuid, on_gpu), 0)
    region = broker.put_tensors(name, packed, device, aliases=aliases, **options)
    return _tensors(region.tensors())


def attach(
    broker: Broker, name: str, *, gpu: bool = True, wait: float | None = None
) -> dict[str, torch.Tensor]:
    """The tensors by name that :func:`share`, or the broker's put_tensors or load, published.

    Args:
        broker: The broker.
        name: The region's name, or that of a checkpoint (``gdrpy load FOLDER``): the tensors are
            those of all its files.
        gpu: Whether the tensors show the GPU view; otherwise they show the CPU view.
        wait: For how many seconds to wait for the name to appear.

    No bytes are copied: ``assign(module, attach(broker, name))`` makes a module use the shared
    memory. The tensors keep their regions. Attach again to get a new version of the name.

    Raises NotFound, ValueError if the region holds no tensors, and the errors of ``Broker.get``.
    """
    _check_broker("attach", broker)
    return _tensors(broker.tensors(name, gpu=gpu, wait=wait))


@contextmanager
def empty_weights() -> Iterator[None]:
    """Inside the block, modules that this thread makes have parameters without memory.

    The parameters are on the device "meta", for :func:`assign` to fill, and initializing them costs
    nothing. Unlike under ``torch.device("meta")`` buffers are computed as usual: those that are not
    part of the module's state, such as rotary frequencies and masks, are in no checkpoint.
    """
    thread = threading.get_ident()
    emptied = WeakIdKeyDictionary()

    def empty(_module: torch.nn.Module, _name: str, parameter: torch.nn.Parameter) -> Any:
        if threading.get_ident() != thread or type(parameter) is not torch.nn.Parameter:
            return None
        if parameter.is_meta:
            return None
        if parameter not in emptied:  # one that two modules share stays one
            made = torch.nn.Parameter(parameter.to("meta"), parameter.requires_grad)
            emptied[parameter] = made
        return emptied[parameter]

    hook = torch.nn.modules.module.register_module_parameter_registration_hook(empty)
    try:
        yield
    finally:
        hook.remove()


def assign(
    module: torch.nn.Module, tensors: abc.Mapping[str, torch.Tensor], *, strict: bool = True
) -> None:
    """Make a module use tensors as its parameters and buffers, without a copy.

    Args:
        module: The module.
        tensors: Tensors by the names of the module's state.
        strict: Whether every name must be there, and no other.

    Like ``module.load_state_dict(tensors, strict, assign=True)``, but weights that are tied in the
    module are tied afterwards, and have their tensor by any of their names. Buffers that are not
    part of the module's state move to the tensors' device. Make optimizers afterwards: the
    parameters are new objects.

    Raises TypeError for other arguments, and ValueError if such a buffer has no memory, before
    anything is changed; RuntimeError for missing, unexpected and misshapen tensors, as
    load_state_dict does.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"assign: module must be a torch.nn.Module, not {type(module).__name__}")
    if not isinstance(tensors, abc.Mapping):
        raise TypeError(
            f"assign: tensors must be a dict of tensors by name, not {type(tensors).__name__}"
        )
    state = module.state_dict(keep_vars=True)
    for name in state.keys() & tensors.keys():
        if isinstance(state[name], torch.Tensor) and not isinstance(tensors[name], torch.Tensor):
            raise TypeError(
                f"assign: {name!r} is of type {type(tensors[name]).__name__}, not a tensor: pass "
                f"what attach() returned"
            )
    for name, buffer in module.named_buffers(remove_duplicate=False):
        if buffer.is_meta and name not in state:
            raise ValueError(
                f"assign: buffer {name!r} has no memory (device meta) and is not part of the "
                f"module's state, so that no tensor fills it: make the module inside "
                f'`with gdrpy.torch.empty_weights():` instead of torch.device("meta")'
            )
    made: dict[int, torch.Tensor] = {}
    for name, own in state.items():
        if name in tensors and id(own) not in made:
            made[id(own)] = _like(own, tensors[name])
    filled = {name: made[id(own)] for name, own in state.items() if id(own) in made}
    module.load_state_dict({**tensors, **filled}, strict=strict, assign=True)
    devices = {tensor.device for tensor in made.values()}
    if len(devices) == 1:
        for part in module.modules():
            for name in part._non_persistent_buffers_set:
                if part._buffers[name] is not None:
                    part._buffers[name] = part._buffers[name].to(*devices)


def _check_broker(call: str, broker: object) -> None:
    if not isinstance(broker, Broker):
        raise TypeError(f"{call}: broker must be that of gdrpy.connect(), not {broker!r}")


def _like(own: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as a parameter, if what it replaces is one."""
    if not isinstance(own, torch.nn.Parameter) or isinstance(tensor, torch.nn.Parameter):
        return tensor
    learns = own.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
    return torch.nn.Parameter(tensor, learns)


def _place(tensor: torch.Tensor) -> Any:
    """A key that is equal for tensors of the same elements of the same memory."""
    laid_out = tensor.shape, tensor.stride(), tensor.is_neg(), tensor.is_conj()
    return tensor.device, tensor.data_ptr(), tensor.dtype, laid_out


def _tensors(arrays: abc.Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """One tensor for each Array, which may have several names."""
    made = {id(array): torch.from_dlpack(array) for array in arrays.values()}
    return {name: made[id(array)] for name, array in arrays.items()}
