"""The limits of memory, regions, leases and descriptors, in total and for each user."""

from __future__ import annotations

import functools
import os
import resource
from dataclasses import dataclass

from gdrpy import cuda
from gdrpy.broker.protocol import CPU_DEVICE
from gdrpy.broker.server import memory
from gdrpy.broker.server.rights import Identity, privileged_users
from gdrpy.broker.server.table import Table
from gdrpy.common.sizes import told_size
from gdrpy.errors import InvalidRequest, NotFound, OutOfMemory, QuotaExceeded, TooLarge

#: Connections of one process, and of one user, if there are four times as many descriptors.
PROCESS_CONNECTIONS = 256
USER_CONNECTIONS = 4096
#: Each user's connections, and regions, with reserved descriptors.
_FIRST = 8
#: Why a user gets no more descriptors.
USED_UP = (
    "the broker's descriptors are used up, except those reserved for other users: close regions or "
    "connections"
)
#: Leases of all sessions of a user.
USER_LEASES = 128 * 1024
#: Regions that all sessions of a user may have asleep: each keeps a name.
USER_SLEEPERS = 4096


@dataclass(frozen=True)
class Quotas:
    """Bytes of regions on a device, in total and for each user, and the count of a user's regions.

    By default regions may use a device's whole memory, and half of the host's.
    """

    device: int | None = None
    user: int | None = None
    regions: int = 4096

    @functools.cached_property
    def devices(self) -> dict[int, int]:
        """Bytes that regions may use on each device. Waits for CUDA's initialization."""
        room = {gpu: cuda.device_info(gpu).memory for gpu in range(cuda.device_count())}
        room[CPU_DEVICE] = memory.host_bytes() // 2
        most = self.device
        return {one: nbytes if most is None else min(most, nbytes) for one, nbytes in room.items()}

    @functools.cached_property
    def uuids(self) -> dict[int, str]:
        """The UUID of each GPU. Waits for CUDA's initialization."""
        return {gpu: cuda.uuid(gpu) for gpu in range(cuda.device_count())}

    @functools.cached_property
    def gpus(self) -> dict[int, str]:
        """The product name of each GPU. Waits for CUDA's initialization."""
        return {gpu: cuda.device_info(gpu).name for gpu in range(cuda.device_count())}

    def number(self, call: str, device: str) -> int:
        """The number of a GPU that a client names. Raises InvalidRequest, NotFound."""
        try:
            return cuda.ordinal(call, device)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        except NotFound:
            raise self._unseen(call, device, f"give the broker {device} too") from None

    def require_device(self, call: str, device: int) -> None:
        """Raise NotFound for a device that the broker does not see."""
        if device not in self.devices:
            raise self._unseen(call, device, 'take host memory by device="cpu"')

    def _unseen(self, call: str, device: int | str, otherwise: str) -> NotFound:
        """The refusal of a GPU, with those that the broker sees."""
        seen = ", ".join(f"{uuid} (GPU {number})" for number, uuid in self.uuids.items())
        return NotFound(
            f"{call}: the broker sees no GPU {device}, but {seen}: name one that it sees, or "
            f"{otherwise}"
        )

    def require_room(self, call: str, table: Table, who: Identity, size: int, device: int) -> None:
        """Raise QuotaExceeded unless a new region of ``size`` bytes of ``who`` fits the limits.

        Raises TooLarge if it would not fit even without other regions.
        """
        limit, used = self.devices[device], table.used[device]
        if used + size > limit:
            raise _too_much(call, size, device, "regions", used, limit)
        if who.privileged:
            return
        share, used = self.user, table.used_by.get((device, who.uid), 0)
        if share is not None and used + size > share:
            raise _too_much(call, size, device, f"regions of user {who.uid}", used, share)
        count = table.counted.get(who.uid, 0)
        if count >= self.regions:
            raise QuotaExceeded(
                f"{call}: user {who.uid} has {count} regions, and may have {self.regions}: delete "
                f"some"
            )

    def require_lease(self, call: str, table: Table, who: Identity) -> None:
        """Raise QuotaExceeded if a user may not have another lease."""
        if table.leased.get(who.uid, 0) >= USER_LEASES and not who.privileged:
            raise QuotaExceeded(
                f"{call}: clients of user {who.uid} hold {USER_LEASES} regions, counted once for "
                f"each connection, which is the limit: close some"
            )

    def lets_sleep(self, table: Table, who: Identity) -> bool:
        """Whether a user may have another region counted as asleep."""
        return who.privileged or table.slept.get(who.uid, 0) < USER_SLEEPERS


def _too_much(
    call: str, size: int, device: int, regions: str, used: int, limit: int
) -> QuotaExceeded:
    """The refusal of ``size`` more bytes on a device."""
    wanted = f"{call}: {told_size(size)} on {device_words(device)}"
    if size > limit:
        return TooLarge(
            f"{wanted}: {regions} may take {told_size(limit)} there in all: ask for less"
        )
    return QuotaExceeded(
        f"{wanted}: {regions} take {told_size(used)} of the {told_size(limit)} that they may take "
        f"there: delete some, or wait for room"
    )


def device_words(device: int) -> str:
    """A device's name in messages."""
    return "the host" if device == CPU_DEVICE else f"GPU {device}"


class DescriptorReserve:
    """Reserves some of the broker's descriptors.

    The kernel gives the lowest free number, so the highest numbers are reserved: for each user's
    first connections and regions, then for root and the broker's user, and the last ones for the
    broker itself, to refuse requests with.
    """

    def __init__(self) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._privileged = privileged_users()
        #: Connections that a user may have.
        self.of_user = min(USER_CONNECTIONS, limit // 4)
        self._own = limit - min(16, limit // 8)
        self._root = self._own - min(64, limit // 16)
        self._first = self._root - min(1024, limit // 4)

    def admits(self, fd: int, uid: int, has: int) -> bool:
        """Whether a user that has ``has`` connections, or regions, may have one more, ``fd``."""
        if uid in self._privileged:
            return fd < self._own
        return fd < (self._root if has < _FIRST else self._first)

    def require(self, call: str, fd: int, uid: int, has: int) -> None:
        """Close a descriptor and raise OutOfMemory if it is reserved for other users."""
        if not self.admits(fd, uid, has):
            os.close(fd)
            raise OutOfMemory(f"{call}: {USED_UP}")
