"""Named tensors in a region, laid out like a safetensors file.

The image begins at the region's first byte, its data at a multiple of 256 bytes. A region may be
larger than its image.
"""

from __future__ import annotations

import os
from collections import abc
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any

from msgspec.structs import replace

from gdrpy.arrays import safetensors_image as image
from gdrpy.arrays.array import Array
from gdrpy.arrays.elements import Elements, elements_of
from gdrpy.arrays.safetensors_file import File, file_layout, shards
from gdrpy.arrays.safetensors_image import Entry, Layout
from gdrpy.arrays.shown import Shown
from gdrpy.arrays.source import BLOCK
from gdrpy.common.dtypes import DTYPES, as_dtype
from gdrpy.common.workers import by_threads
from gdrpy.errors import SizeMismatch

__all__ = [
    "Entry",
    "Layout",
    "file_layout",
    "image_of",
    "layout",
    "load",
    "plan",
    "plan_file",
    "shards",
    "store",
    "tensors",
]

#: Bytes of a file that a thread reads at a time, a multiple of direct I/O's blocks.
_CHUNK = 4 << 20
#: Threads that read a file. Two are as fast where the disk or the host's memory sets the limit.
_THREADS = 4
#: Pieces from which on it is worth to have the copy engine reach the threads' memory.
_REGISTER_FROM = 64


def plan(tensors: abc.Mapping[str, Any], metadata: abc.Mapping[str, str] | None = None) -> Layout:
    """The layout that :func:`store` gives arrays.

    It has no holes. All arrays are aligned to their elements, and to 256 bytes if their sizes are
    multiples of 256.

    The arrays may be of any library, in host or GPU memory, as for :meth:`gdrpy.Array.write`.
    ``metadata`` is free text by name. Raises TypeError for element types that the format lacks,
    ValueError for names that it refuses.
    """
    return _lay_out(_arrays(tensors), metadata)


def store(
    region: Shown, tensors: abc.Mapping[str, Any], metadata: abc.Mapping[str, str] | None = None
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


def layout(region: Shown) -> Layout:
    """The parsed header in a region. Raises ValueError if it holds no valid image."""
    found = image.parse(image.read_header(region.nbytes, region.read))
    if found.nbytes > region.nbytes:
        raise ValueError(
            f"safetensors: the header describes {found.nbytes} bytes, and the region has "
            f"{region.nbytes}"
        )
    return found


def tensors(region: Shown) -> dict[str, Array]:
    """The tensors in a region by name. Raises ValueError if it holds no valid image.

    A tensor has one Array under all of its names. Metadata that gives the name of a tensor under a
    name that no tensor has is an alias, as safetensors.torch.save_model stores tied weights;
    "format" never is.
    """
    found = layout(region)
    there = _tensors(region, found)
    return there | {name: there[kept] for name, kept in found.aliases.items()}


def plan_file(path: str | os.PathLike[str]) -> Layout:
    """The layout that :func:`load` gives a file: its own, with the header padded.

    Raises ValueError if the file is invalid, OSError.
    """
    with File(path) as file:
        return _padded(file)[1]


def image_of(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The bytes of the image that :func:`load` makes of a file, in pieces, for their digest.

    Raises ValueError if the file is invalid or is changed meanwhile, OSError.
    """
    with File(path) as file:
        yield _padded(file)[0]
        yield from file.data(_CHUNK)
        file.check_unchanged()


def load(
    path: str | os.PathLike[str],
    region: Shown,
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Copy a file into a region by several threads, the data first and the padded header last.

    The file is read past the kernel's cache (direct I/O), unless it is there already or its file
    system refuses. ``progress`` is called in this thread after each piece with the bytes done and
    to do. Raises SizeMismatch if the region is too small, ValueError if the file is invalid or is
    changed meanwhile, OSError.
    """
    with File(path) as file:
        padded, target = _padded(file)
        _begin("load", region, target.nbytes)
        file.pass_cache()
        done = 0
        shift = target.data_start - file.layout.data_start
        with closing(_copied(file, region, shift)) as pieces:
            for nbytes in pieces:
                done += nbytes
                if progress:
                    progress(done, target.nbytes)
        file.check_unchanged()
    region.write(padded)
    if progress:
        progress(target.nbytes, target.nbytes)


def _copied(file: File, region: Shown, shift: int) -> Generator[int, None, None]:
    """Copy a file's data to ``shift`` bytes further in a region; yields the bytes of each piece.

    No thread touches either any more when it is closed.
    """
    start, end = file.layout.data_start, file.layout.nbytes
    pieces = range(start - start % BLOCK, end, _CHUNK)

    def worker() -> Callable[[int], int]:
        memory = region._host_memory(min(_CHUNK, end) + 2 * BLOCK, len(pieces) >= _REGISTER_FROM)
        memory = memory[-memory.ctypes.data % BLOCK :]

        def copy(at: int) -> int:
            upto = min(at + _CHUNK, end)
            file.fill(memory, at, upto - at)
            begin = max(at, start)
            region.write(memory[begin - at : upto - at], begin + shift)
            return upto - begin

        return copy

    return by_threads(pieces, _THREADS, worker)


def _arrays(tensors: abc.Mapping[str, Any]) -> dict[str, Elements]:
    if not isinstance(tensors, abc.Mapping):
        raise TypeError(
            f"safetensors: tensors must be a dict of arrays by name, such as a torch module's "
            f"state_dict(), not a {type(tensors).__name__}"
        )
    return {name: elements_of(_call(name), array) for name, array in tensors.items()}


def _lay_out(arrays: abc.Mapping[str, Elements], metadata: abc.Mapping[str, str] | None) -> Layout:
    kinds = {
        name: (as_dtype(_call(name), array.dtype), array.shape) for name, array in arrays.items()
    }
    return image.lay_out(kinds, metadata or {})


def _call(name: str) -> str:
    return f"safetensors: tensor {name!r}"


def _tensors(region: Shown, found: Layout) -> dict[str, Array]:
    return {
        name: Array(region, entry.shape, DTYPES[entry.dtype], found.data_start + entry.start)
        for name, entry in found.entries.items()
    }


def _begin(call: str, region: Shown, nbytes: int) -> None:
    """Check the size and clear the old header: no reader sees it over the new data."""
    if nbytes > region.nbytes:
        raise SizeMismatch(
            f"safetensors.{call}: the tensors and their header take {nbytes} bytes, and the region "
            f"has {region.nbytes}"
        )
    region.write(bytes(image.LENGTH_SIZE))


def _padded(file: File) -> tuple[bytes, Layout]:
    """A file's header as a region holds it, with its length and padding; raw and parsed."""
    padded, found = image.pad(file.header), file.layout
    nbytes = len(padded) + found.nbytes - found.data_start
    return padded, replace(found, data_start=len(padded), nbytes=nbytes)
