"""The ways to get a CPU mapping of GPU memory, and the choice among them.

``GDRPY_BACKEND``, or ``backend=`` where a function takes it, forces one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping

from gdrpy._fd import (
    NVIDIA_NODE,
    describe,
    is_host,
    is_nvidia_export,
    is_simulated,
    share_size,
    simulated_device,
    target_of,
)
from gdrpy.backends import host, sim
from gdrpy.backends.memfd import Memfd
from gdrpy.errors import BackendUnavailable, InvalidHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdrpy.allocation import Allocation
    from gdrpy.backends.base import Backend
    from gdrpy.backends.memory import Memory
    from gdrpy.backends.records import PinRequest


class _Backends(Mapping[str, "Backend"]):
    """Backends by name: ``x`` is the class ``XBackend`` of the module ``x``, imported when used."""

    def __init__(self, *names: str) -> None:
        self._made: dict[str, Backend | None] = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Backend:
        backend = self._made[name]
        if backend is None:
            module = __import__(f"{__name__}.{name}", fromlist=("",))
            backend = self._made[name] = getattr(module, f"{name.capitalize()}Backend")()
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
        import gdrpy.allocation  # noqa: F401

        _ = ALL["nvrm"]


def _forced(backend: str | None) -> Backend | None:
    name = backend or os.environ.get("GDRPY_BACKEND")
    if not name:
        return None
    if name not in ALL:
        raise ValueError(f"there is no backend {name!r}: choose one of {', '.join(ALL)}")
    return ALL[name]


def _candidates(backend: str | None) -> Iterable[Backend]:
    forced = _forced(backend)
    if forced:
        return [forced]
    from gdrpy import cuda

    if cuda.simulated():
        return [ALL["gdrdrv"], ALL["sim"]]
    return [one for one in ALL.values() if one.name != "sim"]


def _first(backend: str | None, device: int, take: Callable[[Backend], Memory]) -> Memory:
    """What the first backend that can gives; else the reason and the remedy of each."""
    refusals: list[str] = []
    invalid: InvalidHandle | None = None
    for one in _candidates(backend):
        status = one.status(device)
        if not status.usable:
            refusals.append(f"{one.name}: {status.reason} ({status.remedy})")
            continue
        try:
            return take(one)
        except InvalidHandle as error:
            invalid = error
            refusals.append(f"{one.name}: {error}")
        except BackendUnavailable as error:
            refusals.append(f"{one.name}: {error}")
    if invalid is not None:
        raise InvalidHandle("; ".join(refusals)) from invalid
    raise BackendUnavailable("no backend can map this memory: " + "; ".join(refusals))


def take_allocation(allocation: Allocation, backend: str | None = None) -> Memory:
    """Take in a VMM allocation of this process, which stays alive as long as the memory."""
    device = allocation.device
    assert device is not None
    memory = _first(
        backend,
        device,
        lambda one: one.from_allocation(allocation.fd, allocation.ptr, allocation.size, device),
    )
    memory.source = allocation
    return memory


def take_export(fd: int, backend: str | None = None) -> Memory:
    """Take in an exported allocation by its descriptor alone, without CUDA.

    Host memory is taken in whatever backend is forced: there is one way to map it.
    """
    if not 0 <= fd < 1 << 31:
        raise InvalidHandle(f"file descriptor {fd} is not open: pass one that Region.export() gave")
    forced = _forced(backend)
    target = target_of(fd)
    if is_host(target):
        return Memfd.of_fd(fd, host.NAME, host.LOCATION)
    if forced and forced.takes_exports:
        return forced.from_export(fd)
    device = simulated_device(target)
    if device is not None:
        return Memfd.of_fd(fd, sim.NAME, sim.location(device))
    if is_simulated(target):
        return ALL["sim"].from_export(fd)
    if is_nvidia_export(target):
        return ALL["nvrm"].from_export(fd)
    if share_size(fd) is not None:
        return ALL["gdrdrv"].from_export(fd)
    raise InvalidHandle(
        f"file descriptor {fd} is {describe(fd)}, not an exported GPU allocation: pass one that "
        f"Region.export() or Pin.export() gave"
    )


def take_pointer(
    ptr: int, nbytes: int, device: int, request: PinRequest, backend: str | None = None
) -> Memory:
    """Take in a range at a device pointer of this process."""

    def take(one: Backend) -> Memory:
        if request.revocable and not one.revocable_pins:
            raise BackendUnavailable("its pins keep the memory that their owner frees")
        return one.from_pointer(ptr, nbytes, device, request)

    return _first(backend, device, take)
