"""Safetensors files, and the folders of several that make a checkpoint."""

from __future__ import annotations

import errno
import os
import reprlib
from collections.abc import Iterator

from gdrpy.arrays import safetensors_image as image
from gdrpy.arrays.safetensors_image import Layout
from gdrpy.arrays.source import Source, named

_CALL = "safetensors"
#: What to do about errors.
_REMEDIES = {
    errno.EISDIR: ": give one of its files, or load the folder by broker.load_checkpoint()",
    errno.ENOTDIR: ": give the checkpoint's folder, or load one file by broker.load()",
}
#: The files of a checkpoint that are preferred to others of their kind in the folder.
_INDEX, _FILE = "model.safetensors.index.json", "model.safetensors"


class File(Source):
    """A file open for reading, whose header is valid and which ends where its data ends.

    Threads may share it. Raises ValueError, which names the file, OSError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(_CALL, path, _REMEDIES)
        try:
            self.header, self.layout = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> tuple[bytes, Layout]:
        fd, size = self._file.fileno(), self.nbytes
        try:
            header = image.read_header(size, lambda nbytes, offset: os.pread(fd, nbytes, offset))
            layout = image.parse(header)
        except ValueError as error:
            remedy = "give a safetensors file, or copy or download it again"
            raise ValueError(f"{self._path}: {error}: {remedy}") from None
        if layout.nbytes != size:
            raise ValueError(
                f"{self._path}: safetensors: the header describes {layout.nbytes} bytes, and the "
                f"file has {size}: copy or download it again"
            )
        return header, layout

    def data(self, nbytes: int) -> Iterator[bytes]:
        """The data behind the header, in pieces of ``nbytes`` bytes."""
        for at in range(self.layout.data_start, self.layout.nbytes, nbytes):
            yield os.pread(self._file.fileno(), min(nbytes, self.layout.nbytes - at), at)


def file_layout(path: str | os.PathLike[str]) -> Layout:
    """The parsed header of a file. Raises ValueError if it is invalid, OSError."""
    with File(path) as file:
        return file.layout


def shards(folder: str | os.PathLike[str]) -> dict[str, Layout]:
    """The safetensors files of a checkpoint's folder, by their names, each with its parsed header.

    Those are the files that ``model.safetensors.index.json`` names, or the folder's only index;
    without an index ``model.safetensors``, or its only safetensors file. Raises ValueError, which
    names the file: one is missing or invalid, lacks a tensor that the index promises, or has one
    that another has too. Raises OSError.
    """
    call = f"safetensors.shards: {os.fspath(folder)}"
    index = _only(call, folder, ".safetensors.index.json", _INDEX)
    if index is None:
        only = _only(call, folder, ".safetensors", _FILE)
        if only is None:
            raise ValueError(
                f"{call} holds no checkpoint: there is neither {_INDEX} nor a safetensors file; "
                f"give the folder that has them"
            )
        return {only: file_layout(os.path.join(folder, only))}
    promised = _weight_map(call, folder, index)
    names = sorted(set(promised.values()))
    missing = [name for name in names if not os.path.exists(os.path.join(folder, name))]
    if missing:
        raise ValueError(
            f"{call}: {index} names {len(names)} files, and {', '.join(map(repr, missing))} "
            f"{'is' if len(missing) == 1 else 'are'} not there: copy or download what is missing"
        )
    found = {name: file_layout(os.path.join(folder, name)) for name in names}
    homes: dict[str, str] = {}
    for name, layout in found.items():
        for tensor in layout.entries:
            if tensor in homes:
                raise ValueError(
                    f"{call}: {homes[tensor]!r} and {name!r} both have the tensor {tensor!r}: they "
                    f"are of different checkpoints; copy or download the folder again"
                )
            homes[tensor] = name
    for tensor, name in promised.items():
        if homes.get(tensor) != name:
            raise ValueError(
                f"{call}: {index} says that {name!r} has the tensor {tensor!r}, and it has not: "
                f"copy or download both again"
            )
    return found


def _only(call: str, folder: str | os.PathLike[str], ending: str, preferred: str) -> str | None:
    """The preferred file of the folder, or the only one with this ending; None without any."""
    with named(f"{_CALL}: cannot read", folder, _REMEDIES):
        found = sorted(name for name in os.listdir(folder or os.curdir) if name.endswith(ending))
    if preferred in found:
        return preferred
    if len(found) > 1:
        index = f", no {_INDEX} that names a checkpoint's files" if preferred == _FILE else ""
        raise ValueError(
            f"{call} has no {preferred}{index}, and {len(found)} other files like it: "
            f"{', '.join(found)}; load one of them, or copy or download what is missing"
        )
    return found[0] if found else None


def _weight_map(call: str, folder: str | os.PathLike[str], index: str) -> dict[str, str]:
    """The file of each tensor, by an index, which is untrusted."""
    import json

    try:
        path = os.path.join(folder, index)
        with named(f"{_CALL}: cannot read", path, _REMEDIES), open(path, "rb") as file:
            text = file.read()
        found = json.loads(text)
        files = found["weight_map"]
        if not all(isinstance(name, str) for name in files.values()) or not files:
            raise TypeError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError(
            f'{call}: {index} is not JSON with a "weight_map" of tensors to files: copy or '
            f"download it again"
        ) from None
    for name in files.values():
        if "/" in name or "\0" in name or name in ("", ".", ".."):
            raise ValueError(
                f"{call}: {index} names {reprlib.repr(name)}, which is not a file's name"
            )
    return dict(files)
