"""File descriptors of memory: what kind each is, and duplicates of them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar

from gdrpy._core._mapping import Descriptor, alone
from gdrpy._core.calls import lib
from gdrpy.errors import InvalidHandle

T = TypeVar("T")

_MEMFD, _DELETED = "/memfd:", " (deleted)"
_SIMULATED = _MEMFD + "gdrpy-sim-dev"
#: The name of memory files of host memory.
HOST_NAME = "gdrpy-host"
_HOST = _MEMFD + HOST_NAME + _DELETED
#: The node on which the NVIDIA driver exports and imports allocations.
NVIDIA_NODE = "/dev/nvidiactl"
#: The node of simulated GPU memory on a PCI BAR, and its description of a descriptor's block: size,
#: identity, device ordinal, flags. Source: gdrpy/sim/src/gpustandin.h.
_BAR_NODE = "/dev/gpustandin"
_BAR_INFO = 0x80184703
_BAR_LAYOUT = struct.Struct("QQII")


def _readlink(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 (pathlib takes several us)


def target_of(fd: int) -> str:
    """The kernel's name of what a descriptor is open on; empty if it is not open."""
    try:
        return _readlink(fd)
    except OSError:
        return ""


def is_simulated(target: str) -> bool:
    """Whether this is the kernel's name of an allocation of the simulated GPU."""
    return target == _BAR_NODE or simulated_device(target) is not None


def simulated_device(target: str) -> int | None:
    """The device of a memory file of a simulated GPU, by its name; None for anything else."""
    number = target.removeprefix(_SIMULATED).removesuffix(_DELETED)
    if number.isdecimal() and target == f"{_SIMULATED}{number}{_DELETED}":
        return int(number)
    return None


def is_host(target: str) -> bool:
    """Whether this is the kernel's name of a memory file of host memory."""
    return target == _HOST


def bar_block(fd: int) -> tuple[int, int]:
    """Device and size in bytes of simulated memory on a PCI BAR. Raises InvalidHandle."""
    try:
        told = fcntl.ioctl(fd, _BAR_INFO, bytes(_BAR_LAYOUT.size))
        size, _, device, _ = _BAR_LAYOUT.unpack(told)
    except OSError:  # the descriptor has no block yet
        size = device = 0
    if not size:
        raise InvalidHandle(
            f"file descriptor {fd} has the name of simulated GPU memory but is empty: it was not "
            f"made by the simulated driver"
        )
    return device, size


def share_size(fd: int) -> int | None:
    """Bytes of the pin behind a share descriptor of the kernel module; None for any other."""
    size = int(lib.core_share_size(fd))
    return size if size >= 0 else None


def is_writable(fd: int) -> bool:
    """Whether the descriptor is open for reading and writing."""
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR


def describe(fd: int) -> str:
    """A descriptor's kind in words, for an error message."""
    try:
        mode = os.fstat(fd).st_mode
        target = _readlink(fd)
    except (OSError, OverflowError):
        return "not open"
    if is_simulated(target):
        return "memory of a simulated GPU"
    if is_host(target):
        return "host memory"
    if share_size(fd) is not None:
        return "a share of a pin"
    if target.startswith("/dmabuf"):
        return "a dma-buf"
    if target.startswith(_MEMFD):
        return "a memfd"
    kinds = {
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a directory",
        stat.S_IFREG: f"the file {target}",
    }
    return kinds.get(stat.S_IFMT(mode), target)


#: A fork waits for the thread that holds this lock. Take it before the lock of any memory: a
#: garbage collection while it is held may end a mapping, which takes the memory's lock.
fork_lock = RLock()
os.register_at_fork(
    before=fork_lock.acquire, after_in_parent=fork_lock.release, after_in_child=fork_lock.release
)


def private(open_one: Callable[..., int], *args: Any) -> Descriptor:
    """The descriptor that ``open_one(*args)`` opens. Forked children close their copy of it."""
    made: Descriptor = alone(fork_lock, Descriptor.opened, open_one, *args)
    return made


def duplicate(fd: int) -> int:
    """A duplicate, closed on exec. Raises InvalidHandle if ``fd`` is not open."""
    return _duplicated(fd, fcntl.fcntl, fcntl.F_DUPFD_CLOEXEC, 3)


def private_duplicate(fd: int) -> Descriptor:
    """A duplicate that forked children close. Raises InvalidHandle if ``fd`` is not open."""
    return _duplicated(fd, Descriptor.duplicate)


def _duplicated(fd: int, make: Callable[..., T], *args: Any) -> T:
    try:
        return make(fd, *args)
    except (OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno != errno.EBADF:
            raise
        raise InvalidHandle(f"file descriptor {fd} is not open") from error
