"""A model's tensors and numbers in a region."""

from __future__ import annotations

import json
from collections.abc import Set
from typing import Any

import msgspec
import torch

from gdrpy import safetensors
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.torch import views
from gdrpy.torch.modules import check_shareable, tensors_of, torch_tensors
from gdrpy.vllm.fallback import Unshareable

#: The note's name in the image's header. By the dotted names of numbers it has whether loading
#: changed them, and their text, at a width that all have: versions of one model lie alike.
_NOTE = "gdrpy.vllm"
_WIDTH = 24
_NUMBERS = (float, int, bool)


def numbers_of(model: torch.nn.Module) -> dict[str, float | int | bool]:
    """The numbers that are plain attributes of a model's modules, by their dotted names."""
    return {
        f"{prefix}.{name}": value
        for prefix, part in model.named_modules()
        for name, value in vars(part).items()
        if type(value) in _NUMBERS
    }


def changed(model: torch.nn.Module, before: dict[str, Any]) -> set[str]:
    """The names of a model's numbers that are not what they were before."""
    return {name for name, value in numbers_of(model).items() if before.get(name) != value}


def packed(
    model: torch.nn.Module, before: dict[str, Any], device: torch.device
) -> tuple[dict[str, torch.Tensor], dict[str, str], dict[str, str]]:
    """The tensors, more names and notes to store for a model: see :func:`gdrpy.torch.views.packed`.

    ``before`` has the model's numbers before its weights were loaded.
    """
    loaded = changed(model, before)
    numbers = {
        name: (int(name in loaded), json.dumps(value).ljust(_WIDTH))  # JSON, also for infinity
        for name, value in numbers_of(model).items()
    }
    tensors = tensors_of(model)
    check_shareable("load_format=gdrpy", tensors)
    stored, aliases, notes = views.packed(
        {name: tensor.to(device) for name, tensor in tensors.items()}, keep_gaps=True
    )
    return stored, aliases, {**notes, _NOTE: msgspec.json.encode(numbers).decode()}


class Contents:
    """A region's tensors and numbers; ``loaded`` has the names of those that loading set."""

    def __init__(self, region: LeasedRegion) -> None:
        try:
            self._tensors = torch_tensors("load_format=gdrpy", region.tensors())
            note = safetensors.layout(region).metadata.get(_NOTE, "{}")
            numbers = msgspec.json.decode(note, type=dict[str, tuple[int, str]])
            self._numbers = {name: json.loads(text) for name, (_, text) in numbers.items()}
            if any(type(one) not in _NUMBERS for one in self._numbers.values()):
                raise ValueError(f"{region!r} has other values than numbers")
        except ValueError as error:
            raise Unshareable("layout", str(error)) from error
        self.loaded = {name for name, (was_loaded, _) in numbers.items() if was_loaded}

    def share(self, model: torch.nn.Module) -> None:
        """Make parameters views of the region.

        Raises Unshareable, before anything is changed, if the tensors are not those of the model.
        """
        own = tensors_of(model)
        _check_alike(own, self._tensors)
        for name, mine in own.items():
            if isinstance(mine, torch.nn.Parameter):
                mine.data = self._tensors[name]

    def fill(self, model: torch.nn.Module, scratch: torch.Tensor, before: dict[str, Any]) -> None:
        """Have a model that was blank use the tensors and numbers: see :func:`blank`.

        Parameters become views of the region, other tensors copies. ``before`` has the model's
        numbers before they were made of blank weights. Raises as :meth:`share`.
        """
        _check_no_meta(model)
        own, blanks = tensors_of(model), scratch.untyped_storage().data_ptr()
        self.share(model)
        parts = dict(model.named_modules())
        for name, mine in own.items():
            if (
                not isinstance(mine, torch.nn.Parameter)
                and mine.untyped_storage().data_ptr() == blanks
            ):
                _put(parts, name, self._tensors[name].clone())
        self.refresh(model, changed(model, before))

    def refresh(self, model: torch.nn.Module, more: Set[str]) -> None:
        """Copy into a model what it does not share, and set the numbers: loaded ones, and more."""
        own = tensors_of(model)  # also what the engine has made meanwhile, such as its KV cache
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                if not isinstance(own[name], torch.nn.Parameter):
                    _distinct(own[name]).copy_(_distinct(tensor, like=own[name]))
        parts = dict(model.named_modules())
        for name in self._numbers.keys() & numbers_of(model).keys() & (self.loaded | more):
            prefix, _, last = name.rpartition(".")
            setattr(parts[prefix], last, self._numbers[name])


def blank(model: torch.nn.Module, device: torch.device) -> torch.Tensor:
    """Give tensors that have no memory some: buffers one each, and all parameters the same.

    Single numbers have their own and are 1, for vLLM checks and divides by scales. Returns the
    parameters' memory.
    """
    own = {name: tensor for name, tensor in tensors_of(model).items() if tensor.is_meta}
    nbytes = max((one.untyped_storage().nbytes() for one in own.values()), default=0)
    scratch = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    parts = dict(model.named_modules())
    made: dict[int, torch.Tensor] = {}
    for name, tensor in own.items():
        if id(tensor) not in made:
            made[id(tensor)] = _blank_like(tensor, scratch)
        _put(parts, name, made[id(tensor)])
    return scratch


def _put(parts: dict[str, torch.nn.Module], name: str, tensor: torch.Tensor) -> None:
    """Put a tensor in the place of another of its kind."""
    prefix, _, last = name.rpartition(".")
    part = parts[prefix]
    for place in (part._parameters, part._buffers, part.__dict__):
        if last in place:
            place[last] = tensor


def _blank_like(tensor: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """A tensor of the same class, attributes and strides."""
    if isinstance(tensor, torch.nn.Parameter) and tensor.numel() > 1:
        blank = torch.empty(0, dtype=tensor.dtype, device=scratch.device)
        blank.set_(scratch.untyped_storage(), 0, tensor.shape, tensor.stride())
    else:
        blank = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=scratch.device
        )
        _distinct(blank).fill_(int(tensor.numel() == 1))
    blank.__class__ = tensor.__class__
    blank.__dict__ = tensor.__dict__.copy()
    return blank


def _distinct(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor without the elements that repeat others, as expanded ones do, or like another's."""
    steps = (tensor if like is None else like).stride()
    return tensor[tuple(slice(1 if step == 0 else None) for step in steps)]


def _check_alike(own: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    differing = own.keys() ^ found.keys()
    if differing:
        name = min(differing)
        side = "lacks" if name in own else "has, and the model lacks,"
        raise Unshareable("layout", f"the region {side} the tensor {name!r}")
    for name, mine in own.items():
        other = found[name]
        if _kind(mine) != _kind(other):
            raise Unshareable(
                "layout",
                f"the region's {name!r} is {_kind(other)}, and the model's {_kind(mine)}",
            )


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.stride()


def _check_no_meta(model: torch.nn.Module) -> None:
    """Raise Unshareable for tensors without memory that no name of :func:`tensors_of` reaches."""
    for prefix, part in model.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.nn.Module | torch.Tensor) or name.startswith("_param"):
                continue
            inner = vars(value).values() if hasattr(value, "__dict__") else value
            inner = inner.values() if isinstance(inner, dict) else inner
            if not isinstance(inner, list | tuple | type({}.values())):
                continue
            if any(isinstance(one, torch.Tensor) and one.is_meta and one.numel() for one in inner):
                raise Unshareable(
                    "model", f"{prefix}.{name} keeps tensors that vLLM makes while it loads"
                )
