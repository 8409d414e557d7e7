"""The node of the module, as the ABI describes it."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import NamedTuple, Self

PERSISTENT, REVOCABLE, ZERO_AFTER = 1, 2, 4
READ_ONLY = 1
REVOKED, OVERFLOW = 1, 2

_UNPIN, _PIN_V3, _SHARE = 0xC008DA02, 0xC020DA41, 0xC018DA42
_EVENT = struct.Struct("QQII")


class Event(NamedTuple):
    handle: int
    sequence: int
    kind: int
    lost: int


class Gdrdrv:
    """An open node; leaving the context closes it, which ends its pins."""

    def __init__(self) -> None:
        self.fd = os.open("/dev/gdrdrv", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.fd)

    def fileno(self) -> int:
        return self.fd

    def _call(self, command: int, layout: str, *values: int) -> tuple[int, ...]:
        """An ioctl on a structure packed from values; what it holds afterwards."""
        argument = bytearray(struct.pack(layout, *values))
        fcntl.ioctl(self.fd, command, argument, True)
        return struct.unpack(layout, argument)

    def pin(self, address: int, nbytes: int, flags: int = REVOCABLE) -> int:
        """The handle."""
        size = struct.calcsize("IIQQQ")
        return self._call(_PIN_V3, "IIQQQ", size, flags, address, nbytes, 0)[-1]

    def unpin(self, handle: int) -> None:
        self._call(_UNPIN, "Q", handle)

    def share(self, handle: int, flags: int = 0) -> int:
        """A descriptor that any process may map."""
        return self._call(_SHARE, "IIQiI", struct.calcsize("IIQiI"), flags, handle, -1, 0)[3]

    def map(self, handle: int, nbytes: int) -> mmap.mmap:
        return mmap.mmap(self.fd, nbytes, offset=handle * mmap.PAGESIZE)

    def events(self) -> list[Event]:
        """Those that wait."""
        try:
            return [
                Event(*event) for event in _EVENT.iter_unpack(os.read(self.fd, 4096 // 24 * 24))
            ]
        except BlockingIOError:
            return []
