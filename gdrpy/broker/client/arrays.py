"""Calls that put arrays and tensors into a region, and how a region tells what array it holds."""

from __future__ import annotations

from gdrpy.broker.client import calls, region_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    import numpy as np

    from gdrpy.broker.client.calls import Client
    from gdrpy.broker.client.region import LeasedRegion
    from gdrpy.common.dtypes import DType

    R = TypeVar("R", bound=LeasedRegion)

#: The key of an array's element type and shape in a region's metadata.
ARRAY = "array"
#: What the metadata of a region says that holds an image of the safetensors format.
SAFETENSORS = {"format": "safetensors"}


async def put(
    client: Client[R],
    name: str,
    array: Any,
    device: int | str = 0,
    *,
    mode: int = 0o600,
    metadata: dict[str, Any] | None = None,
    seal: bool = False,
    gpu: bool = True,
    cpu: bool = True,
    wait: float | None = None,
) -> R:
    """Publish a copy of an array under the name; ``region.numpy()`` gives it back, as it was.

    It is of any library, in host or GPU memory, as of :meth:`gdrpy.Array.write`. Others find the
    array or what was there before, never a part of it. With ``seal`` nobody may write it any more.
    Parameters and errors as of :meth:`create`; TypeError for arrays of objects and of structures.
    """
    from gdrpy.arrays.elements import elements_of

    source = elements_of("put", array)
    layout = [_type_name(source.dtype), list(source.shape)]
    draft = await calls.create(
        client,
        name,
        max(source.data.nbytes, 1),
        device,
        mode=mode,
        metadata={**(metadata or {}), ARRAY: layout},
        gpu=gpu,
        cpu=cpu,
        wait=wait,
    )
    return await _publish(draft, lambda: draft._put("put", source, 0), seal)


async def put_tensors(
    client: Client[R],
    name: str,
    tensors: Mapping[str, Any],
    device: int | str = 0,
    *,
    mode: int = 0o600,
    metadata: dict[str, Any] | None = None,
    seal: bool = False,
    gpu: bool = True,
    cpu: bool = True,
    wait: float | None = None,
) -> R:
    """Publish copies of arrays by their names, in one region, for its ``tensors()``.

    They are laid out as in a safetensors file, which has no complex numbers, strings or dates.
    Parameters and errors as of :meth:`put`.
    """
    from gdrpy import safetensors

    draft = await calls.create(
        client,
        name,
        safetensors.plan(tensors).nbytes,
        device,
        mode=mode,
        metadata={**(metadata or {}), **SAFETENSORS},
        gpu=gpu,
        cpu=cpu,
        wait=wait,
    )
    return await _publish(draft, lambda: safetensors.store(draft, tensors), seal)


async def load(
    client: Client[R],
    path: str | os.PathLike[str],
    name: str,
    device: int | str = 0,
    *,
    mode: int = 0o600,
    metadata: dict[str, Any] | None = None,
    seal: bool = False,
    gpu: bool = True,
    cpu: bool = True,
    wait: float | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> R:
    """Publish a safetensors file's content, for its ``tensors()``.

    ``progress`` is called after each piece with the bytes done and to do. Parameters and errors
    otherwise as of :meth:`put`; ValueError for an invalid file, OSError.
    """
    from gdrpy import safetensors

    draft = await calls.create(
        client,
        name,
        safetensors.size_of(path),
        device,
        mode=mode,
        metadata={**(metadata or {}), **SAFETENSORS},
        gpu=gpu,
        cpu=cpu,
        wait=wait,
    )
    return await _publish(draft, lambda: safetensors.load(path, draft, progress), seal)


async def _publish(draft: R, fill: Callable[[], object], seal: bool) -> R:
    """The draft, filled and published; it is closed if that fails."""
    try:
        fill()
        if seal:
            await region_calls.seal(draft)
        await region_calls.publish(draft)
    except BaseException:
        draft.close()
        raise
    return draft


def _type_name(dtype: DType | np.dtype[Any]) -> str:
    """What stands for an element type: numpy's letters, safetensors' name where it has none."""
    if isinstance(dtype, tuple):
        return dtype.numpy("put").str if dtype.native else dtype.name
    if dtype.kind != "V":
        if dtype.hasobject:
            raise TypeError(f"put: an array of {dtype} holds objects, not bytes: convert it first")
        return dtype.str
    if dtype.names is None:
        from gdrpy.common.dtypes import as_dtype

        return as_dtype("put", dtype).name
    raise TypeError(f"put: an array of structures ({dtype}) cannot be put: put each field")


def stored_array(call: str, layout: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The element type and shape of an array that :func:`put` stored, by its metadata.

    Raises ValueError for what put() does not store, TypeError where ml_dtypes is missing for it.
    """
    import numpy as np

    from gdrpy.common.dtypes import DTYPES

    try:
        name, lengths = layout
        kind = DTYPES.get(name) or np.dtype(str(name))
        if isinstance(kind, np.dtype) and (kind.str != name or kind.hasobject):
            raise ValueError
        if type(lengths) is not list or not all(map(_is_length, lengths)):
            raise ValueError
    except (TypeError, ValueError, SyntaxError):
        raise ValueError(
            f"{call}: the region's metadata has {layout!r:.80} for {ARRAY!r}, which no put() "
            f"stored: pass the array's dtype and shape"
        ) from None
    return kind if isinstance(kind, np.dtype) else kind.numpy(call), tuple(lengths)


def _is_length(value: Any) -> bool:
    return type(value) is int and value >= 0
