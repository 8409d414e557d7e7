"""The module's node and its ioctls, as in driver/uapi/gdrdrv.h: also calls that it refuses."""

from __future__ import annotations

import errno
import fcntl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

from gdrpy.memory.node import PATH

#: A GPU page in bytes: the least that is pinned.
PAGE = 1 << 16
PERSISTENT, REVOCABLE = 1, 2

#: Number and layout of each command, without the structure's own size and flags.
PIN, UNPIN, GET_INFO, GET_ATTR, GET_VERSION = 0x01, 0x02, 0x05, 0x06, 0xFF
FEATURES, PIN_V3 = 0x40, 0x41
FEATURE_NAMES = ("PIN_V3", "SHARE", "EVENTS", "FORCE_PCIE", "DEVICE_TYPE")
#: Commands that are declared with a pointer in place of their structure.
_OF_A_POINTER = (UNPIN, GET_INFO, GET_ATTR, GET_VERSION)


class RawNode:
    """The node, open."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def call(self, number: int, layout: str, *values: int) -> tuple[int, ...]:
        """An ioctl on a structure packed from values; returns its values. Raises OSError."""
        argument = bytearray(struct.pack(layout, *values))
        size = struct.calcsize("P") if number in _OF_A_POINTER else len(argument)
        fcntl.ioctl(self.fd, 3 << 30 | size << 16 | 0xDA << 8 | number, argument, True)
        return struct.unpack(layout, argument)

    def answer(self, number: int, layout: str, *values: int) -> str:
        """The name of the errno that refuses an ioctl, or ``accepted``."""
        try:
            self.call(number, layout, *values)
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, str(error.errno))
        return "accepted"

    def pin(self, address: int, nbytes: int, flags: int) -> int:
        """Pin memory; returns the handle."""
        layout = "IIQQQ"
        return self.call(PIN_V3, layout, struct.calcsize(layout), flags, address, nbytes, 0)[-1]

    def unpin(self, handle: int) -> None:
        """End a pin."""
        self.call(UNPIN, "Q", handle)

    def info(self, handle: int) -> tuple[int, int, int]:
        """Address, bytes and page size of a pin."""
        _, va, nbytes, page, *_ = self.call(GET_INFO, "QQQIIQII", handle, *[0] * 7)
        return va, nbytes, page


@contextmanager
def open_node() -> Iterator[RawNode]:
    """The node, which ends its pins when it is closed."""
    # An interrupt right after the open loses no descriptor: the file closes when it is dropped.
    with FileIO(PATH, "r+") as file:
        yield RawNode(file.fileno())
