"""Memory of the host, for a region that lies on no GPU: a sealed memory file."""

from __future__ import annotations

import errno
import fcntl
import os

from gdrpy.common.resource import Undo
from gdrpy.errors import OutOfMemory
from gdrpy.memory.descriptors import HOST_NAME

#: What the backend is called, and where its memory lies.
NAME, LOCATION = "host", "host memory"

_PAGE = os.sysconf("SC_PAGESIZE")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def rounded_size(nbytes: int) -> int:
    """The bytes that ``nbytes`` take: whole pages."""
    return -(-nbytes // _PAGE) * _PAGE


def create(nbytes: int) -> int:
    """A new descriptor, closed on exec, of at least ``nbytes`` zeroed bytes: whole pages.

    Nobody can resize it. Who holds no more than a descriptor opened for reading can write to it
    only as the same user, or root. Raises OutOfMemory.
    """
    size = rounded_size(nbytes)
    with Undo() as undo:
        fd = os.memfd_create(HOST_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        undo.callback(os.close, fd)
        os.fchmod(fd, 0o600)
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            if error.errno not in (errno.EFBIG, errno.EINVAL, errno.ENOMEM, errno.ENOSPC):
                raise
            raise OutOfMemory(f"the host has no {size} bytes for a memory file") from error
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        undo.pop_all()
        return fd
