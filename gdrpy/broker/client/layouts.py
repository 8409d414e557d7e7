"""The description of an array, or of tensors, in their region's metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gdrpy.arrays.elements import Elements
from gdrpy.common.dtypes import DTYPES, DType, as_dtype

if TYPE_CHECKING:
    import numpy as np

#: The key of an array's element type and shape in a region's metadata.
ARRAY = "array"
#: The key of the digest of the tensors' layout.
LAYOUT = "layout"


def same_layout(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the contents of two regions lie alike, as far as their metadata tells."""
    return _kind(one) == _kind(other)


def _kind(metadata: dict[str, Any]) -> tuple[Any, ...]:
    tensors = metadata.get("format") == "safetensors"
    return metadata.get(ARRAY), tensors, metadata.get(LAYOUT) if tensors else None


def layout_of(array: Elements) -> list[Any]:
    """The element type and shape of an array, for msgpack. Raises TypeError."""
    return [_type_name(array.dtype), list(array.shape)]


def _type_name(dtype: DType | np.dtype[Any]) -> str:
    """The name of an element type: numpy's letters, or safetensors' name if it has none."""
    if isinstance(dtype, DType):
        return dtype.numpy("put").str if dtype.native else dtype.name
    if dtype.kind != "V":
        if dtype.hasobject:
            raise TypeError(f"put: an array of {dtype} holds objects, not bytes: convert it first")
        return dtype.str
    if dtype.names is None:
        return as_dtype("put", dtype).name
    raise TypeError(f"put: an array of structures ({dtype}) cannot be put: put each field")


def stored_array(call: str, layout: Any) -> tuple[DType | np.dtype[Any], tuple[int, ...]]:
    """The element type and shape of an array that :func:`put` stored, from its metadata.

    Raises ValueError for metadata that put() does not write.
    """
    import numpy as np

    try:
        name, lengths = layout
        kind = DTYPES.get(name) or np.dtype(str(name))
        if isinstance(kind, np.dtype) and (kind.str != name or kind.hasobject):
            raise ValueError
        if type(lengths) is not list:
            raise ValueError
        if not all(type(length) is int and length >= 0 for length in lengths):
            raise ValueError
    except (TypeError, ValueError, SyntaxError):
        raise ValueError(
            f"{call}: the region's metadata has {layout!r:.80} for {ARRAY!r}, which no put() "
            f"stored: pass the array's dtype and shape"
        ) from None
    return kind, tuple(lengths)
