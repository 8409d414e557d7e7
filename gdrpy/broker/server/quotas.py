"""How much of each device's memory regions may take, all of them and each user's."""

from __future__ import annotations

import functools
import os
import resource
from dataclasses import dataclass

from gdrpy import cuda
from gdrpy.broker.protocol import CPU_DEVICE
from gdrpy.broker.server import memory
from gdrpy.broker.server.rights import Identity
from gdrpy.broker.server.table import Table
from gdrpy.errors import InvalidRequest, NotFound, OutOfMemory, QuotaExceeded

#: Connections of one process, and of one user, where there are four times as many descriptors.
PROCESS_CONNECTIONS = 256
USER_CONNECTIONS = 4096
#: Connections, and regions, of each user for whom descriptors are kept.
_FIRST = 8
#: Leases that all sessions of a user may have, on any regions.
USER_LEASES = 128 * 1024


@dataclass(frozen=True)
class Quotas:
    """Bytes that regions may take on a device, in all and of each user, and how many a user has.

    By default a device's whole memory, and half of the host's.
    """

    device: int | None = None
    user: int | None = None
    regions: int = 4096

    @functools.cached_property
    def devices(self) -> dict[int, int]:
        """Bytes that regions may take on each device. Takes the time that CUDA takes to begin."""
        return {
            device: capacity if self.device is None else min(self.device, capacity)
            for device, capacity in memory.capacities().items()
        }

    @functools.cached_property
    def uuids(self) -> dict[int, str]:
        """The UUID of each GPU. Takes the time that CUDA takes to begin."""
        return memory.uuids()

    def number(self, call: str, device: str) -> int:
        """The number of a GPU that a client names. Raises InvalidRequest, NotFound."""
        try:
            return cuda.ordinal(call, device)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        except NotFound:
            seen = ", ".join(f"{uuid} (GPU {number})" for number, uuid in self.uuids.items())
            raise NotFound(
                f"{call}: the broker sees no GPU {device}, but {seen}: give it that GPU too"
            ) from None

    def require_device(self, call: str, device: int) -> None:
        """Raise NotFound for a device that the machine does not have."""
        if device not in self.devices:
            raise NotFound(f"{call}: this machine has no {device_words(device)}")

    def require_room(self, call: str, table: Table, who: Identity, size: int, device: int) -> None:
        """Raise QuotaExceeded unless somebody's new region of ``size`` bytes fits the limits."""
        limit, used = self.devices[device], table.used[device]
        if used + size > limit:
            raise QuotaExceeded(
                f"{call}: {size} bytes on {device_words(device)}: regions take {used} of the "
                f"{limit} bytes that they may take there; delete some, or wait= for room"
            )
        if who.privileged:
            return
        share, used = self.user, table.used_by.get((device, who.uid), 0)
        if share is not None and used + size > share:
            raise QuotaExceeded(
                f"{call}: {size} bytes on {device_words(device)}: regions of user {who.uid} take "
                f"{used} of the {share} bytes that a user's may take there; delete some"
            )
        count = table.counted.get(who.uid, 0)
        if count >= self.regions:
            raise QuotaExceeded(
                f"{call}: user {who.uid} has {count} regions, and may have {self.regions}"
            )

    def require_lease(self, call: str, table: Table, who: Identity) -> None:
        """Raise QuotaExceeded where a user may have no lease more."""
        if table.leased.get(who.uid, 0) >= USER_LEASES and not who.privileged:
            raise QuotaExceeded(
                f"{call}: clients of user {who.uid} hold {USER_LEASES} regions, counted once for "
                f"each connection, which is as many as they may: close some"
            )


def device_words(device: int) -> str:
    """A device as messages call it."""
    return "the host" if device == CPU_DEVICE else f"GPU {device}"


class DescriptorReserve:
    """Which of the broker's descriptors are for whom.

    The kernel gives the lowest number that is free, so the highest numbers are kept: for each
    user's first connections and regions, then for root and the broker's own user, and the last ones
    for the broker itself, to say no with.
    """

    def __init__(self) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._privileged = (0, os.geteuid())
        #: Connections that a user may have.
        self.of_user = min(USER_CONNECTIONS, limit // 4)
        self._own = limit - min(16, limit // 8)
        self._root = self._own - min(64, limit // 16)
        self._first = self._root - min(1024, limit // 4)

    def admits(self, fd: int, uid: int, has: int) -> bool:
        """Whether a user who has so many connections, or regions, may have this one more."""
        if uid in self._privileged:
            return fd < self._own
        return fd < (self._root if has < _FIRST else self._first)

    def require(self, call: str, fd: int, uid: int, has: int) -> None:
        """Close a descriptor of a user's region and raise OutOfMemory if it is not for them."""
        if not self.admits(fd, uid, has):
            os.close(fd)
            raise OutOfMemory(
                f"{call}: the broker's descriptors are used up, but for what is kept for others"
            )
