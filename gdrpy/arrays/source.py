"""Files that are read in blocks, past the kernel's cache."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import numpy as np

#: Direct I/O needs offsets, sizes and addresses that are multiples of this; most disks of less.
BLOCK = 4096
#: A file is taken to be in the kernel's cache if so many of its bytes are, at random places.
_PROBES = 16
_TOO_MANY = {errno.EMFILE: ": close some files, or raise the limit (ulimit -n)"}
#: No remedies for errors.
NONE: Mapping[int, str] = {}


class Source:
    """A file open for reading, of ``nbytes`` bytes. Threads may share it.

    Raises OSError, and ValueError if the file changes. Both name the call and the file.
    """

    def __init__(
        self, call: str, path: str | os.PathLike[str], remedies: Mapping[int, str] = NONE
    ) -> None:
        self._call, self._path = call, os.fspath(path)
        with named(f"{call}: cannot read", self._path, remedies):
            self._file = regular(self._path)
        self._state = self._found_state()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def nbytes(self) -> int:
        """The size when it was opened."""
        return self._state[0]

    def pass_cache(self) -> None:
        """Have the file read by direct I/O, unless its file system refuses or it is cached.

        A probe may itself make the kernel read ahead; those at other places are not misled.
        """
        fd, size = self._file.fileno(), self.nbytes
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
            f"{self._call}: {self._path} was changed while it was read: read it again "
            f"when its writer is done"
        )


def regular(path: str) -> FileIO:
    """A file open for reading. Raises OSError for a pipe, a device or a folder, too."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
            number = errno.EISDIR if is_folder else errno.EINVAL
            why = os.strerror(number) if is_folder else "not a regular file"
            raise OSError(number, why, path)
        return open(fd, "rb", buffering=0)
    except BaseException:
        os.close(fd)
        raise


@contextmanager
def named(what: str, path: str | os.PathLike[str], remedies: Mapping[int, str]) -> Iterator[None]:
    """Have an OSError name what cannot be done, the path, and the remedy where one is known."""
    try:
        yield
    except OSError as error:
        remedy = remedies.get(error.errno or 0, _TOO_MANY.get(error.errno or 0, ""))
        if error.errno == errno.ENOENT and not os.path.isabs(path):
            with suppress(OSError):  # that folder may be gone
                remedy += f": the current folder is {os.getcwd()}"
        why = f"{what} {os.fspath(path)}: {error.strerror}{remedy}"
        found = OSError(error.errno, why)
        found.filename = os.fspath(path)
        raise found from None
