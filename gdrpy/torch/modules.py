"""A module's tensors in regions of a broker, for every process of the machine."""

from __future__ import annotations

import threading
from collections import abc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from gdrpy import cuda
from gdrpy.arrays.array import Array
from gdrpy.arrays.shown import Shown
from gdrpy.broker.client.broker import Broker, BrokerRegion
from gdrpy.broker.client.lookup import calling
from gdrpy.torch.views import packed, unpacked


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All tensors that a module holds, by their dotted names, for :func:`share`.

    Beside the module's state these are the buffers that are not part of it, and tensors that are
    plain attributes, as engines make them when they have loaded weights. Tensors without elements
    are left out. A module that has several names counts under its first.
    """
    found: dict[str, torch.Tensor] = {}
    for prefix, part in module.named_modules():
        held = {**part._parameters, **part._buffers, **vars(part)}
        for name, tensor in held.items():
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                found[f"{prefix}.{name}" if prefix else name] = tensor
    return found


def share(
    broker: Broker,
    name: str,
    tensors: torch.nn.Module | abc.Mapping[str, torch.Tensor],
    device: Any = None,
    **options: Any,
) -> dict[str, torch.Tensor]:
    """Publish a copy of a module's state, or of named tensors, and return the shared tensors.

    They lie in one region of the broker, laid out like a safetensors file. Tensors keep their
    strides, and those that share memory, such as tied weights, share it there too. A tensor that
    is not contiguous, that overlaps another one, or whose element type the format lacks, lies in
    an array of bytes ``NAME.storage``, as which readers without torch see it. One that has gaps of
    more than 1 MiB, and than its own size, becomes contiguous if it overlaps no other.

    Args:
        broker: The broker.
        name: The region's name.
        tensors: A module, or tensors by their names.
        device: The GPU, named as for :func:`gdrpy.alloc`. None is that of the first tensor that is
            on one, else GPU 0.
        options: Those of :meth:`gdrpy.Broker.put_tensors`, by keyword.

    :func:`attach` gives any process the same memory. ``assign(module, share(broker, name,
    module))`` makes this process use the shared copy and free its own.

    Raises TypeError for anything else than named tensors, and for those that are sparse, nested,
    quantized or made of other tensors, ValueError for tensors without memory, and the errors of
    put_tensors.
    """
    _check_broker("share", broker)
    state = tensors.state_dict() if isinstance(tensors, torch.nn.Module) else tensors
    if not isinstance(state, abc.Mapping):
        raise TypeError(
            f"share: tensors must be a module, or a dict of tensors by name, not "
            f"{type(state).__name__}"
        )
    check_shareable("share", state)
    if device is None:
        on_gpu = (one.device.index or 0 for one in state.values() if one.is_cuda)
        device = next(map(cuda.uuid, on_gpu), 0)
    bases, aliases, notes = packed(state)
    with calling("share", "put_tensors", "create"):
        region = broker.put_tensors(name, bases, device, aliases=aliases, notes=notes, **options)
    return torch_tensors("share", region.tensors())


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
    with calling("attach", "tensors"):
        arrays = broker.tensors(name, gpu=gpu, wait=wait)
    return torch_tensors("attach", arrays)


def tensors_in(region: BrokerRegion) -> dict[str, torch.Tensor]:
    """The tensors by name of a region that :func:`share` published.

    For workers that keep the region, to put it to sleep: :meth:`gdrpy.Broker.sleep_many`. The
    tensors show its GPU view if it has one. Raises ValueError if the region holds no tensors,
    Detached, Closed.
    """
    return torch_tensors("tensors_in", region.tensors())


def check_shareable(call: str, tensors: abc.Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError for what has no elements in memory: see :func:`share`."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{call}: {name!r} is of type {type(tensor).__name__}, not a tensor: leave it out"
            )
        if tensor.is_meta or torch.nn.parameter.is_lazy(tensor):
            why = "device meta" if tensor.is_meta else "uninitialized"
            raise ValueError(
                f"{call}: {name!r} has no memory ({why}): share a module that was loaded"
            )
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            raise TypeError(
                f"{call}: {name!r} is sparse, nested or quantized ({tensor.layout}, "
                f"{tensor.dtype}): share its parts, or a dense copy"
            )
        if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise TypeError(
                f"{call}: {name!r} is a {type(tensor).__name__}, which may have no memory of its "
                f"own: share its parts, or a plain copy"
            )


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
    made: dict[int, Any] = {}
    for name, own in state.items():
        if name in tensors and id(own) not in made:
            made[id(own)] = _like(own, tensors[name])
    filled = {name: made[id(own)] for name, own in state.items() if id(own) in made}
    module.load_state_dict({**tensors, **filled}, strict=strict, assign=True)
    devices = {one.device for one in made.values() if isinstance(one, torch.Tensor)}
    if len(devices) == 1:
        for part in module.modules():
            for name in part._non_persistent_buffers_set:
                if part._buffers[name] is not None:
                    part._buffers[name] = part._buffers[name].to(*devices)


def _check_broker(call: str, broker: object) -> None:
    if not isinstance(broker, Broker):
        raise TypeError(f"{call}: broker must be that of gdrpy.connect(), not {broker!r}")


def _like(own: Any, tensor: Any) -> Any:
    """A tensor as a parameter, if what it replaces is one."""
    if not isinstance(own, torch.nn.Parameter) or isinstance(tensor, torch.nn.Parameter):
        return tensor
    learns = own.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
    return torch.nn.Parameter(tensor, learns)


def torch_tensors(call: str, arrays: abc.Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """One tensor for each Array, which may have several names, and those that lie in arrays."""
    made = {id(array): torch.from_dlpack(array) for array in arrays.values()}
    found = {name: made[id(array)] for name, array in arrays.items()}
    regions = {id(array.region): array.region for array in arrays.values()}
    for region in regions.values():
        if isinstance(region, Shown):  # not of a pin
            unpacked(call, region, found)
    return found
