"""File descriptors that carry GPU memory: what one is, and a duplicate to own."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import struct
from pathlib import Path

from gdrpy._core import _ffi
from gdrpy.errors import InvalidHandle

_SIMULATED = re.compile(r"/memfd:gdrpy-sim-dev(\d+) \(deleted\)")
#: The node of simulated GPU memory on a PCI BAR, and what it tells of a descriptor's block: bytes,
#: an identity, the device's ordinal, flags. Source: gdrpy/sim/src/gpustandin.h.
_BAR_NODE = "/dev/gpustandin"
_BAR_INFO = 0x80184703
_BAR_BLOCK = struct.Struct("QQII")
#: A peer that could shrink the memory could kill its users by SIGBUS.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def _target(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def is_simulated(fd: int) -> bool:
    """Whether the descriptor bears the name of an allocation of the simulated GPU."""
    try:
        target = _target(fd)
    except OSError:
        return False
    return target == _BAR_NODE or _SIMULATED.fullmatch(target) is not None


def simulated_block(fd: int) -> tuple[int, int]:
    """Device and size in bytes of a simulated allocation's descriptor. Raises InvalidHandle."""
    found = _SIMULATED.fullmatch(_target(fd))
    size = 0
    if found:
        device = int(found[1])
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS:
            size = os.fstat(fd).st_size
    else:
        with contextlib.suppress(OSError):  # a view of nothing yet
            block = fcntl.ioctl(fd, _BAR_INFO, bytes(_BAR_BLOCK.size))
            size, _, device, _ = _BAR_BLOCK.unpack(block)
    if not size:
        raise InvalidHandle(
            f"file descriptor {fd} bears the name of simulated GPU memory but is empty or can "
            f"be resized: it was not made by the simulated driver"
        )
    return device, size


def share_size(fd: int) -> int | None:
    """Bytes of the pin that a kernel module's share descriptor shows; None for any other."""
    size = int(_ffi.lib.gdr_share_size(fd))
    return size if size >= 0 else None


def is_writable(fd: int) -> bool:
    """Whether the descriptor is open for writing too."""
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR


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
    if is_simulated(fd):
        return "memory of a simulated GPU"
    if share_size(fd) is not None:
        return "a share of a pin"
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
