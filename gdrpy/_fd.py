"""File descriptors that carry GPU memory: what one is, and a duplicate to own."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from pathlib import Path

from gdrpy.errors import InvalidHandle

_SIMULATED = re.compile(r"/memfd:gdrpy-sim-dev(\d+) \(deleted\)")


def _target(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def simulated_device(fd: int) -> int | None:
    """The simulated GPU that the descriptor's allocation lies on; None if it is no such thing."""
    try:
        found = _SIMULATED.fullmatch(_target(fd))
    except OSError:
        return None
    return int(found[1]) if found else None


def is_nvidia_export(fd: int) -> bool:
    """Whether the descriptor is of the node that the NVIDIA driver exports allocations on."""
    try:
        return _target(fd) == "/dev/nvidiactl"
    except OSError:
        return False


def describe(fd: int) -> str:
    """What a descriptor is, in words for an error message."""
    try:
        mode = os.fstat(fd).st_mode
        target = _target(fd)
    except (OSError, OverflowError):
        return "not open"
    if _SIMULATED.fullmatch(target):
        return "memory of a simulated GPU"
    if target.startswith("/dmabuf"):
        return "a dma-buf"
    if target.startswith("/memfd:"):
        return "a memfd"
    kinds = {
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a directory",
        stat.S_IFREG: f"the file {target}",
    }
    return kinds.get(stat.S_IFMT(mode), target)


def duplicate(fd: int) -> int:
    """A duplicate, closed on exec. Raises InvalidHandle if ``fd`` is not open."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    except (OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno != errno.EBADF:
            raise
        raise InvalidHandle(f"file descriptor {fd} is not open") from error
