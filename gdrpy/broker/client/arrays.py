"""Calls that put arrays and tensors into a region."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gdrpy import safetensors
from gdrpy.arrays.elements import elements_of
from gdrpy.broker.client import calls, region_calls
from gdrpy.broker.client.arguments import as_name
from gdrpy.broker.client.base import BrokerBase
from gdrpy.broker.client.layouts import ARRAY, LAYOUT, layout_of
from gdrpy.broker.client.region import LeasedRegion
from gdrpy.broker.replies import Grant
from gdrpy.common.arguments import as_path
from gdrpy.errors import NotFound

R = TypeVar("R", bound=LeasedRegion)


def of_tensors(layout: safetensors.Layout) -> dict[str, Any]:
    """The metadata of a region that holds an image of the safetensors format."""
    return {"format": "safetensors", LAYOUT: layout.digest}


async def put(
    client: BrokerBase[R],
    name: str,
    array: Any,
    device: Any = 0,
    *,
    mode: int = 0o600,
    metadata: dict[str, Any] | None = None,
    seal: bool = False,
    gpu: bool = True,
    cpu: bool = True,
    wait: float | None = None,
) -> R:
    """Publish a copy of an array under the name; ``region.numpy()`` and ``region.array()`` show it.

    Args:
        name: The name.
        array: An array of any library, in host or GPU memory, as for :meth:`gdrpy.Array.write`,
            or another region, whose array is stored.
        device: The device of the copy: as for :meth:`allocate`, as are ``mode``, ``metadata``,
            ``gpu``, ``cpu`` and ``wait``.
        seal: Whether to make the region immutable. The views of the returned one are read-only.

    Other processes find the whole array or the region that had the name before.

    Raises as :meth:`create`, and TypeError for arrays of objects and of structures.
    """
    as_name("put", name)  # first, so that the error names swapped arguments
    layout = array.metadata.get(ARRAY) if isinstance(array, LeasedRegion) else None
    source = elements_of("put", array if layout is None else array.array(dtype="U8"))
    about = _described("put", metadata, {ARRAY: layout or layout_of(source)})
    options: dict[str, Any] = {"mode": mode, "gpu": gpu, "cpu": cpu, "wait": wait}
    nbytes = max(source.data.nbytes, 1)
    draft = await calls.create(client, name, nbytes, device, metadata=about, **options)
    return await published(draft, lambda: draft._put("put", source, 0), seal)


async def put_tensors(
    client: BrokerBase[R],
    name: str,
    tensors: Mapping[str, Any],
    device: Any = 0,
    *,
    aliases: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
    missing: bool = False,
    mode: int = 0o600,
    metadata: dict[str, Any] | None = None,
    seal: bool = False,
    gpu: bool = True,
    cpu: bool = True,
    wait: float | None = None,
) -> R:
    """Publish copies of named arrays in one region, whose ``tensors()`` returns them.

    Args:
        name: The region's name.
        tensors: Arrays of any library by their names.
        aliases: More names of tensors, each with the tensor's first name.
        notes: Text by name for the header, which readers of the format keep or ignore.
        missing: Whether to return the region that has the name, if there is one in the end, instead
            of replacing it.
        device: The device of the copies: as for :meth:`put`, as are the parameters that follow.

    The layout is that of a safetensors file, which cannot hold complex numbers, strings or dates.
    Raises as :meth:`put`, and ValueError for an alias that is a tensor's name, a note's, or
    "format", which the format keeps for itself, or whose tensor does not exist.
    """
    as_name("put_tensors", name)
    aliases, notes = aliases or {}, notes or {}
    for alias, kept in aliases.items():
        if alias == "format" or alias in notes:
            raise ValueError(f"put_tensors: alias {alias!r} cannot name a tensor: choose another")
        if alias in tensors:
            raise ValueError(f"put_tensors: alias {alias!r} is a tensor's name: choose another")
        if kept not in tensors:
            raise ValueError(
                f"put_tensors: alias {alias!r} stands for {kept!r}, which is not a tensor's name"
            )
    for note, words in notes.items():
        if words in tensors:
            raise ValueError(f"put_tensors: note {note!r} is the name of a tensor: use aliases")
    options: dict[str, Any] = {"mode": mode, "gpu": gpu, "cpu": cpu, "wait": wait}
    text = {**notes, **aliases}
    layout = safetensors.plan(tensors, text)
    about = _described("put_tensors", metadata, of_tensors(layout))
    draft = await calls.create(client, name, layout.nbytes, device, metadata=about, **options)
    return await published(
        draft, lambda: safetensors.store(draft, tensors, text), seal, missing=missing
    )


async def load(
    client: BrokerBase[R],
    path: str | os.PathLike[str],
    name: str,
    device: Any = 0,
    *,
    mode: int = 0o600,
    metadata: dict[str, Any] | None = None,
    seal: bool = False,
    gpu: bool = True,
    cpu: bool = True,
    wait: float | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> R:
    """Publish a safetensors file's tensors in one region, whose ``tensors()`` returns them.

    Args:
        path: The file.
        name: The region's name.
        device: The region's device: as for :meth:`put`, as are the parameters that follow.
        progress: Called after each piece with the bytes read so far and the total.

    Raises as :meth:`put`, ValueError for an invalid file, OSError.
    """
    as_name("load", name)
    path = as_path("load", "path", path)
    options: dict[str, Any] = {"mode": mode, "gpu": gpu, "cpu": cpu, "wait": wait}
    layout = safetensors.plan_file(path)
    about = _described("load", metadata, of_tensors(layout))
    draft = await calls.create(client, name, layout.nbytes, device, metadata=about, **options)
    return await published(draft, lambda: safetensors.load(path, draft, progress), seal)


def _described(call: str, metadata: Any, contents: Mapping[str, Any]) -> dict[str, Any]:
    """A region's metadata: the caller's, and what tells how to read the contents."""
    if metadata is not None and not isinstance(metadata, dict):
        raise TypeError(f"{call}: metadata must be a dict, not {metadata!r}")
    return {**(metadata or {}), **contents}


async def published(
    draft: R,
    fill: Callable[[], object],
    seal: bool,
    *,
    missing: bool = False,
    beside: int | None = None,
) -> R:
    """Fill a draft and publish it; a failure closes it.

    With ``missing`` it is closed, too, if a region has its name; that one is returned then.
    ``beside``: see :func:`~gdrpy.broker.client.calls.publish_beside`.
    """
    client, views = draft._broker, {"gpu": draft._ptr is not None, "cpu": draft._cpu is not None}
    request = calls.request_to_get(draft.name, views["gpu"], readonly=False)
    try:
        fill()
        if seal:
            await region_calls.seal(draft)
            draft._protect()
        while True:
            await calls.publish_beside(client, [draft], beside, missing=missing)
            if draft.version:
                return draft
            try:
                grant, parcels = await client._ask(request, Grant)
                break
            except NotFound:  # deleted meanwhile
                pass
        found = client._region_type._granted(client, grant, parcels, **views)
    except BaseException as error:
        draft.__exit__(type(error), error, error.__traceback__)  # a failure becomes a note
        raise
    draft.close()
    return found
