"""Safetensors files, and the folders of several that make a checkpoint."""

from __future__ import annotations

import errno
import fcntl
import os
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from gdrpy.arrays import safetensors_image as image
from gdrpy.arrays.safetensors_image import Layout

if TYPE_CHECKING:
    import numpy as np

#: Direct I/O needs offsets, sizes and addresses that are multiples of this; most disks of less.
BLOCK = 4096
#: A file is taken to be in the kernel's cache if so many of its bytes are, at random places.
_PROBES = 16
#: What to do about errors.
_REMEDIES = {
    errno.EISDIR: ": give one of its files, or load the folder by broker.load_checkpoint()",
    errno.ENOTDIR: ": give the checkpoint's folder, or load one file by broker.load()",
}
#: The files of a checkpoint that are preferred to others of their kind in the folder.
_INDEX, _FILE = "model.safetensors.index.json", "model.safetensors"


class File:
    """A file open for reading, whose header is valid and which ends where its data ends.

    Threads may share it. Raises ValueError, which names the file, OSError.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        with _named(self._path):
            self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115
        try:
            self._state = self._found_state()
            self.header, self.layout = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _read_header(self) -> tuple[bytes, Layout]:
        fd, size = self._file.fileno(), self._state[0]
        try:
            header = image.read_header(size, lambda nbytes, offset: os.pread(fd, nbytes, offset))
            layout = image.parse(header)
        except ValueError as error:
            raise ValueError(f"{self._path}: {error}") from None
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

    def pass_cache(self) -> None:
        """Have the file read by direct I/O, unless its file system refuses or it is cached.

        A probe may itself make the kernel read ahead; those at other places are not misled.
        """
        fd, size = self._file.fileno(), self._state[0]
        try:
            for _ in range(_PROBES):
                place = int.from_bytes(os.urandom(8)) % size
                os.preadv(fd, [bytearray(1)], place, os.RWF_NOWAIT)
        except OSError:  # EAGAIN: it must be read from the disk
            try:
                fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
            except OSError:
                return

    def fill(self, memory: np.ndarray[Any, Any], at: int, nbytes: int) -> None:
        """Read ``nbytes`` bytes from byte ``at`` on, a multiple of a block, past the cache or not.

        The memory begins at a block and has room for one more than it gets.
        """
        fd, done = self._file.fileno(), 0
        while done < nbytes:
            rest = memory[done : nbytes + -nbytes % BLOCK].data
            try:
                got = os.preadv(fd, [rest], at + done)
            except OSError as error:
                refused = error.errno in (errno.EINVAL, errno.EFAULT)  # the place, the memory
                if not refused or not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                    raise
                fcntl.fcntl(fd, fcntl.F_SETFL, 0)
                continue
            if not got:
                raise self._changed()
            done += got

    def check_unchanged(self) -> None:
        """Raise ValueError if the file was written since it was opened."""
        if self._found_state() != self._state:
            raise self._changed()

    def _found_state(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def _changed(self) -> ValueError:
        return ValueError(
            f"{self._path}: safetensors: the file was changed while it was read: load it again "
            f"when its writer is done"
        )


@contextmanager
def _named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Have an OSError name the path, and the remedy where one is known."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "")
        if error.errno == errno.ENOENT and not os.path.isabs(path):
            with suppress(OSError):  # that folder may be gone
                remedy = f": the current folder is {os.getcwd()}"
        why = f"safetensors: cannot read {os.fspath(path)}: {error.strerror}{remedy}"
        named = OSError(error.errno, why)
        named.filename = error.filename
        raise named from None


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
    with _named(folder):
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
        with _named(path), open(path, "rb") as file:
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
