"""/dev/nvidiactl, spoken to with structures of any size."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
from pathlib import Path
from typing import Self

NODE = Path("/dev/nvidiactl")
MAJOR, MINOR = 195, 255
FREE, CONTROL, ALLOC, DUP, MAP, UNMAP = 0x29, 0x2A, 0x2B, 0x34, 0x4E, 0x4F
CARD_INFO, CHECK_VERSION = 200, 210
EXPORT_INFO, IMPORT = 0x3D08, 0x3D0C
CONFIDENTIAL = 0xCB330101
ROOT_CLIENT, CONFIDENTIAL_CLASS = 0x41, 0xCB33


class ControlNode:
    """An open node; leaving the context closes it."""

    def __init__(self) -> None:
        if not NODE.exists():  # nvidia-modprobe's work
            os.mknod(NODE, 0o666 | stat.S_IFCHR, os.makedev(MAJOR, MINOR))
        self.fd = os.open(NODE, os.O_RDWR | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.fd)

    def ioctl(self, number: int, argument: bytearray) -> int:
        """The errno, 0 for success."""
        command = 3 << 30 | len(argument) << 16 | ord("F") << 8 | number
        try:
            fcntl.ioctl(self.fd, command, argument, True)
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def client(self) -> int:
        """A new root client's handle."""
        argument = bytearray(struct.pack("4IQ2I", 0, 0, 0, ROOT_CLIENT, 0, 0, 0))
        assert self.ioctl(ALLOC, argument) == 0
        _, _, handle, _, _, _, status = struct.unpack("4IQ2I", argument)
        assert status == 0
        return int(handle)

    def confidential(self, client: int) -> int:
        """The handle of a new object of the client, for questions about confidential computing."""
        argument = bytearray(
            struct.pack("4IQ2I", client, client, 0xF0, CONFIDENTIAL_CLASS, 0, 0, 0)
        )
        assert self.ioctl(ALLOC, argument) == 0
        _, _, handle, _, _, _, status = struct.unpack("4IQ2I", argument)
        assert status == 0
        return int(handle)

    def control(
        self, client: int, command: int, parameters: bytearray, target: int | None = None
    ) -> int:
        """The status of a control call on the client, or on an object of it."""
        buffer = (ctypes.c_char * len(parameters)).from_buffer(parameters)
        address = ctypes.addressof(buffer)
        argument = bytearray(
            struct.pack("4IQ2I", client, target or client, command, 0, address, len(parameters), 0)
        )
        assert self.ioctl(CONTROL, argument) == 0
        return int(struct.unpack("4IQ2I", argument)[-1])
