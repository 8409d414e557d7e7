"""The ways to get a CPU mapping of GPU memory, and the choice among them, which the C core makes.

``GDRPY_BACKEND``, or ``backend=`` where a function takes it, forces one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from gdrpy._fd import (
    NVIDIA_NODE,
    bar_block,
    describe,
    is_host,
    is_nvidia_export,
    is_simulated,
    share_size,
    simulated_device,
    target_of,
)
from gdrpy.backends import host
from gdrpy.backends.memfd import SIMULATED, Memfd, simulated_location
from gdrpy.errors import InvalidHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gdrpy.allocation import Allocation
    from gdrpy.backends.backend import Backend
    from gdrpy.backends.corememory import CoreMemory
    from gdrpy.backends.memory import Memory
    from gdrpy.backends.node import Node


class _Backends(Mapping[str, "Backend"]):
    """Backends by name, each made when it is used."""

    def __init__(self, *names: str) -> None:
        self._made: dict[str, Backend | None] = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Backend:
        backend = self._made[name]
        if backend is None:
            from gdrpy.backends.backend import Backend

            backend = self._made[name] = Backend(name)
        return backend

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def __contains__(self, name: object) -> bool:
        return name in self._made


#: Every backend, in the order of choice on a real GPU.
ALL = _Backends("gdrdrv", "dmabuf", "nvrm", "sim")


def prepare() -> None:
    """Import now what the first mapping of exported memory will need on this machine."""
    if os.access(NVIDIA_NODE, os.F_OK):
        import gdrpy.allocation
        import gdrpy.backends.corememory  # noqa: F401


def _forced(backend: str | None) -> str | None:
    """The backend that an argument or the environment forces. Raises ValueError."""
    name = backend or os.environ.get("GDRPY_BACKEND") or None
    if name is not None and name not in ALL:
        raise ValueError(f"there is no backend {name!r}: choose one of {', '.join(ALL)}")
    return name


def candidates() -> list[str]:
    """The backends that may be tried for this process's GPU memory, in the order of choice."""
    forced = _forced(None)
    if forced:
        return [forced]
    from gdrpy.backends.core import candidate_names

    return candidate_names()


def take_allocation(allocation: Allocation, backend: str | None = None) -> Memory:
    """Take in a VMM allocation of this process, which stays alive as long as the memory."""
    forced = _forced(backend)
    from gdrpy.backends.corememory import take
    from gdrpy.backends.node import own_node

    assert allocation.home is not None
    memory = take(
        forced,
        own_node.get,
        ptr=allocation.ptr or 0,
        nbytes=allocation.size,
        fd=allocation.fd,
        device=allocation.home,
    )
    memory.source = allocation
    return memory


def take_export(fd: int, backend: str | None = None, call: str = "take_export") -> Memory:
    """Take in an exported allocation by its descriptor alone, without CUDA.

    Host memory is taken in whatever backend is forced: there is one way to map it.
    """
    forced = _forced(backend)
    target = target_of(fd) if 0 <= fd < 1 << 31 else ""
    if not target:
        raise InvalidHandle(
            f"{call}: file descriptor {fd} is not open: pass one that Region.export() gave"
        )
    if is_host(target):
        return Memfd.of_fd(fd, host.NAME, host.LOCATION)
    if forced == "nvrm":
        return _take_nvidia_export(fd)
    device = simulated_device(target)
    if device is not None:
        return Memfd.of_fd(fd, SIMULATED, simulated_location(device))
    if is_simulated(target):
        ordinal, size = bar_block(fd)
        return _take_export("sim", fd, size, ordinal)
    if forced == "sim":
        raise InvalidHandle(
            f"{call}: file descriptor {fd} is {describe(fd)}, not an allocation of the simulated "
            f"GPU: pass one that Region.export() gave"
        )
    if is_nvidia_export(target):
        return _take_nvidia_export(fd)
    if share_size(fd) is not None:
        return _take_export("gdrdrv", fd)
    raise InvalidHandle(
        f"{call}: file descriptor {fd} is {describe(fd)}, not an exported GPU allocation: pass "
        f"one that Region.export() or Pin.export() gave"
    )


def _take_export(backend: str, fd: int, nbytes: int = 0, device: int = -1) -> Memory:
    from gdrpy.backends.corememory import take_export

    return take_export(backend, fd, nbytes, device)


def _take_nvidia_export(fd: int) -> Memory:
    try:
        return _take_export("nvrm", fd)
    except InvalidHandle as error:
        raise InvalidHandle(
            f"file descriptor {fd} is {describe(fd)}, which the NVIDIA driver does not take for "
            f"an exported allocation ({error}): pass one that Region.export() gave"
        ) from error


def take_pointer(
    ptr: int,
    nbytes: int,
    *,
    revocable: bool,
    sigbus: bool,
    open_node: Callable[[], Node],
    backend: str | None = None,
) -> CoreMemory:
    """Take in a range at a device pointer of this process; byte 0 of the memory is at ``ptr``.

    ``revocable`` has it lose the memory that its owner frees, rather than keep it; an access then
    finds zeros, or with ``sigbus`` is a SIGBUS. ``open_node`` gives the node whose events tell.
    """
    forced = _forced(backend)
    from gdrpy.backends.corememory import take

    return take(forced, open_node, ptr=ptr, nbytes=nbytes, revocable=revocable, sigbus=sigbus)
