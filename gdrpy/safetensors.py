"""Named tensors in a region, laid out like a safetensors file.

The image begins at the region's first byte, its data at a multiple of 256 bytes. A region may be
larger than its image.
"""

from __future__ import annotations

import os
from collections import abc
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gdrpy.arrays import safetensors_image as image
from gdrpy.arrays.array import Array
from gdrpy.arrays.elements import Elements, elements_of
from gdrpy.arrays.safetensors_image import Entry, Layout
from gdrpy.arrays.viewed import Viewed
from gdrpy.common.dtypes import DTYPES, as_dtype
from gdrpy.errors import SizeMismatch

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Entry",
    "Layout",
    "Plan",
    "file_layout",
    "layout",
    "load",
    "plan",
    "size_of",
    "store",
    "tensors",
]

#: Bytes of a file that are read at a time.
_CHUNK = 16 << 20


class Plan(NamedTuple):
    """The image that :func:`store` would write: its header with length, its names in data order.

    The region needs at least ``nbytes`` bytes.
    """

    header: bytes
    order: tuple[str, ...]
    nbytes: int


def plan(tensors: abc.Mapping[str, Any], metadata: abc.Mapping[str, str] | None = None) -> Plan:
    """Lay arrays out without holes, all aligned to their elements, and to 256 bytes if their sizes
    are multiples of 256.

    The arrays may be of any library, in host or GPU memory, as for :meth:`gdrpy.Array.write`.
    ``metadata`` is free text by name. Raises TypeError for element types that the format lacks,
    ValueError for names that it refuses.
    """
    found = _lay_out(_arrays(tensors), metadata)
    return Plan(image.pad(image.encode(found)), tuple(found.entries), found.nbytes)


def store(
    region: Viewed, tensors: abc.Mapping[str, Any], metadata: abc.Mapping[str, str] | None = None
) -> None:
    """Write arrays into a region as :func:`plan` lays them out, the header last.

    Raises SizeMismatch if the region is too small, and the errors of :func:`plan`.
    """
    arrays = _arrays(tensors)
    found = _lay_out(arrays, metadata)
    _begin("store", region, found.nbytes)
    for name, tensor in _tensors(region, found).items():
        region._put("safetensors.store", arrays[name], tensor.offset)
    region.write(image.pad(image.encode(found)))


def layout(region: Viewed) -> Layout:
    """The parsed header in a region. Raises ValueError if it holds no valid image."""
    found = image.parse(image.read_header(region.nbytes, region.read))
    if found.nbytes > region.nbytes:
        raise ValueError(
            f"safetensors: the header describes {found.nbytes} bytes, and the region has "
            f"{region.nbytes}"
        )
    return found


def tensors(region: Viewed) -> dict[str, Array]:
    """The tensors in a region by name. Raises ValueError if it holds no valid image."""
    return _tensors(region, layout(region))


def file_layout(path: str | os.PathLike[str]) -> Layout:
    """The parsed header of a file. Raises ValueError if it is invalid, OSError."""
    with _open(path) as file:
        return _file_header(file)[1]


def size_of(path: str | os.PathLike[str]) -> int:
    """The bytes that a region needs for :func:`load`: the file's, with the header padded.

    Raises ValueError if the file is invalid, OSError.
    """
    with _open(path) as file:
        return _padded(*_file_header(file))[1].nbytes


def load(
    path: str | os.PathLike[str],
    region: Viewed,
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Copy a file into a region in large pieces, the data first and the padded header last.

    ``progress`` is called after each piece with the bytes done and to do. Raises SizeMismatch if
    the region is too small, ValueError if the file is invalid, OSError.
    """
    with _open(path) as file:
        header, source = _file_header(file)
        padded, target = _padded(header, source)
        _begin("load", region, target.nbytes)
        file.seek(source.data_start)
        memory = region._host_memory(min(_CHUNK, target.nbytes - target.data_start))
        for offset in range(target.data_start, target.nbytes, _CHUNK):
            piece = memory[: target.nbytes - offset]
            _fill(file, piece)
            region.write(piece, offset)
            if progress:
                progress(offset - target.data_start + piece.nbytes, target.nbytes)
    region.write(padded)
    if progress:
        progress(target.nbytes, target.nbytes)


def _arrays(tensors: abc.Mapping[str, Any]) -> dict[str, Elements]:
    if not isinstance(tensors, abc.Mapping):
        raise TypeError(
            f"safetensors: tensors must be a dict of arrays by name, such as a torch module's "
            f"state_dict(), and is a {type(tensors).__name__}"
        )
    return {name: elements_of(_call(name), array) for name, array in tensors.items()}


def _lay_out(arrays: abc.Mapping[str, Elements], metadata: abc.Mapping[str, str] | None) -> Layout:
    kinds = {
        name: (as_dtype(_call(name), array.dtype), array.shape) for name, array in arrays.items()
    }
    return image.lay_out(kinds, metadata or {})


def _call(name: str) -> str:
    return f"safetensors: tensor {name!r}"


def _tensors(region: Viewed, found: Layout) -> dict[str, Array]:
    return {
        name: Array(region, entry.shape, DTYPES[entry.dtype], found.data_start + entry.start)
        for name, entry in found.entries.items()
    }


def _begin(call: str, region: Viewed, nbytes: int) -> None:
    """Check the size and clear the old header: no reader sees it over the new data."""
    if nbytes > region.nbytes:
        raise SizeMismatch(
            f"safetensors.{call}: the tensors and their header take {nbytes} bytes, and the region "
            f"has {region.nbytes}"
        )
    region.write(bytes(image.LENGTH_SIZE))


def _open(path: str | os.PathLike[str]) -> FileIO:
    return Path(path).open("rb", buffering=0)


def _file_header(file: FileIO) -> tuple[bytes, Layout]:
    """The raw and the parsed header of a file, which must end where its data ends."""
    fd = file.fileno()
    size = os.fstat(fd).st_size
    header = image.read_header(size, lambda nbytes, offset: os.pread(fd, nbytes, offset))
    found = image.parse(header)
    if found.nbytes != size:
        raise ValueError(
            f"safetensors: the header describes {found.nbytes} bytes, and the file has {size}"
        )
    return header, found


def _padded(header: bytes, found: Layout) -> tuple[bytes, Layout]:
    """A file's header as a region holds it, with its length and padding; raw and parsed."""
    padded = image.pad(header)
    nbytes = len(padded) + found.nbytes - found.data_start
    return padded, found._replace(data_start=len(padded), nbytes=nbytes)


def _fill(file: FileIO, piece: np.ndarray[Any, Any]) -> None:
    rest = piece.data
    while rest:
        done = file.readinto(rest)
        if not done:
            raise ValueError("safetensors: the file became shorter while it was read")
        rest = rest[done:]
