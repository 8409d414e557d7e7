"""Tensors that overlap or have strides or types of their own, in a format that has none of these.

Their memory is stored as arrays of bytes, and a note in the image's header tells how they lie in
them.
"""

from __future__ import annotations

from collections import abc
from typing import Any, TypeVar

import msgspec
import torch

from gdrpy import safetensors
from gdrpy.arrays.shown import Shown
from gdrpy.common.dtypes import DTYPES

K = TypeVar("K")

#: The note's name in the header.
_NOTE = "gdrpy.torch.views"
#: Names that are none of tensors where the format has aliases.
_RESERVED = {"format", _NOTE}
#: The names of element types that the format has.
_TYPES = {dtype.array_name for dtype in DTYPES.values()}
#: Arrays of bytes begin at a multiple of this in their storage, and have a multiple of it.
_ALIGNMENT = 256
#: Bytes in gaps up to which a tensor keeps its strides, if the gaps are larger than itself.
_GAPS = 1 << 20


class _View(msgspec.Struct, array_like=True):
    """How a tensor lies in an array of bytes: ``offset`` is in bytes, ``stride`` in elements."""

    base: str
    dtype: str
    offset: int
    shape: list[int]
    stride: list[int]


def packed(
    tensors: abc.Mapping[str, torch.Tensor], keep_gaps: bool = False
) -> tuple[dict[str, torch.Tensor], dict[str, str], dict[str, str]]:
    """Contiguous tensors to store, more names of these, and a note of how the others lie in them.

    A tensor alone with large gaps becomes contiguous, unless ``keep_gaps``. Conjugated and negated
    tensors are copied first.
    """
    plain = {
        name: tensor.detach().resolve_conj().resolve_neg().as_subclass(torch.Tensor)
        for name, tensor in tensors.items()
    }
    stored: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    views: dict[str, _View] = {}
    for names in clusters(plain):
        first, *others = (plain[name] for name in names)
        if (
            _fits(first)
            and all(_place(one) == _place(first) for one in others)
            and _RESERVED.isdisjoint(names[1:])
        ):
            stored[names[0]] = first
            aliases |= dict.fromkeys(names[1:], names[0])
            continue
        gaps = extent(first)[1] - extent(first)[0] - first.nbytes
        large = gaps > max(first.nbytes, _GAPS)  # such as in one column of many
        if len(names) == 1 and large and not keep_gaps:
            stored[names[0]] = first.contiguous()
            continue
        base = f"{names[0]}.storage"
        while base in plain or base in stored:
            base += ".storage"
        start = extent(first)[0] // _ALIGNMENT * _ALIGNMENT
        stored[base] = _bytes(first, start, max(extent(plain[name])[1] for name in names))
        for name in names:
            one = plain[name]
            kind, offset = str(one.dtype).removeprefix("torch."), extent(one)[0] - start
            views[name] = _View(base, kind, offset, list(one.shape), list(one.stride()))
    return stored, aliases, {_NOTE: msgspec.json.encode(views).decode()} if views else {}


def unpacked(call: str, region: Shown, found: dict[str, torch.Tensor]) -> None:
    """Put a region's tensors of which the note tells among those found, in place of their bytes.

    Raises ValueError for a note that :func:`packed` does not write.
    """
    note = safetensors.layout(region).metadata.get(_NOTE)
    if note is None:
        return
    try:
        views = msgspec.json.decode(note, type=dict[str, _View])
        made = {name: _made(view, found[view.base]) for name, view in views.items()}
    except (KeyError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{call}: {region!r} has no valid note of how its tensors lie ({error}): share them "
            f"again"
        ) from error
    for view in views.values():
        found.pop(view.base, None)
    found |= made


def _made(view: _View, base: torch.Tensor) -> torch.Tensor:
    dtype = getattr(torch, view.dtype)
    offset, rest = divmod(base.storage_offset() + view.offset, dtype.itemsize)
    if base.dtype != torch.uint8 or rest or view.offset < 0:
        raise ValueError(f"offset {view.offset} in {view.base!r} suits no {view.dtype}")
    steps = zip(view.shape, view.stride, strict=True)
    last = sum((length - 1) * step for length, step in steps) if all(view.shape) else -1
    if min([*view.shape, *view.stride, 0]) < 0 or (
        view.offset + (last + 1) * dtype.itemsize > base.numel()
    ):
        raise ValueError(f"shape {view.shape} exceeds {view.base!r}")
    tensor = torch.empty(0, dtype=dtype, device=base.device)
    return tensor.set_(base.untyped_storage(), offset, view.shape, view.stride)


def clusters(tensors: abc.Mapping[K, torch.Tensor]) -> list[list[K]]:
    """The names of tensors whose memory overlaps, by their first bytes; in the order of the first.

    Tensors without elements are by themselves.
    """
    found: list[list[K]] = []
    ends: dict[Any, tuple[int, list[K]]] = {}
    by_place = sorted(tensors, key=lambda name: (str(tensors[name].device), extent(tensors[name])))
    for name in by_place:
        tensor = tensors[name]
        storage = tensor.device, tensor.untyped_storage().data_ptr()
        start, end = extent(tensor)
        before, cluster = ends.get(storage, (0, []))
        if not cluster or start >= before or start == end:
            cluster, before = [], 0
            found.append(cluster)
        cluster.append(name)
        if start < end:
            ends[storage] = max(before, end), cluster
    order = {name: number for number, name in enumerate(tensors)}
    for cluster in found:
        cluster.sort(key=lambda name: (extent(tensors[name])[0], order[name]))
    return sorted(found, key=lambda cluster: min(order[name] for name in cluster))


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage from the tensor's first to behind its last."""
    start = tensor.storage_offset() * tensor.itemsize
    if not tensor.numel():
        return start, start
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((length - 1) * step for length, step in steps)
    return start, start + (last + 1) * tensor.itemsize


def _fits(tensor: torch.Tensor) -> bool:
    """Whether the format holds a tensor as it is: its type, and its strides to the last one."""
    usual = torch.empty(tensor.shape, device="meta").stride()
    return str(tensor.dtype).removeprefix("torch.") in _TYPES and (
        not tensor.numel() or tensor.stride() == usual
    )


def _place(tensor: torch.Tensor) -> Any:
    """A key that is equal for tensors of the same elements of the same memory."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _bytes(tensor: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """A copy of bytes of a tensor's storage, filled up with zeros."""
    held = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    held.set_(tensor.untyped_storage(), start, (end - start,), (1,))
    return torch.nn.functional.pad(held, (0, -(end - start) % _ALIGNMENT))
