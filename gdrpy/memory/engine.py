"""The copy engine without CUDA: whether it works here, and host memory that it reaches."""

from __future__ import annotations

import re
from typing import Any

from gdrpy import cuda
from gdrpy._core._mapping import engine_register, engine_status
from gdrpy.common.resource import Resource
from gdrpy.errors import Error
from gdrpy.memory.backends import Status


def status(device: int | None = None) -> Status:
    """Whether the engine of a device, or of the first GPU, copies right; if not, why not.

    Makes the engine, which takes a little GPU memory. Never raises.
    """
    try:
        gpu = None if device is None else _address(cuda.device_info(device).pci)
        return Status(True, engine_status(gpu))
    except Error as error:
        # A node that cannot be opened is named once.
        return Status(False, re.sub(r"^open (\S+): (?=.*\1)", "", str(error)))


def _address(pci: str) -> tuple[int, int, int]:
    """The domain, bus and slot of a PCI address."""
    domain, bus, rest = pci.split(":")
    return int(domain, 16), int(bus, 16), int(rest.partition(".")[0], 16)


def register(buffer: Any) -> Registration:
    """Have the copy engine copy a buffer without staging, until the registration is closed.

    Writes and reads with ``via="engine"`` of any of the buffer's bytes then take the engine's full
    speed and no CPU. So do rows that are contiguous in the buffer, each after the one before; other
    rows are staged. The pages are pinned when they are first copied, which takes longer than a
    copy: register buffers that are used many times. Memory that the driver does not
    pin, such as a shared mapping of a file on disk, is copied as before. Kernels older than 5.9 may
    give a process that forks other pages: register again there.

    Args:
        buffer: Bytes, or a writable contiguous buffer or host array, which stays alive and in place
            meanwhile.

    Raises TypeError, ValueError (no bytes), BufferError (not contiguous, or read-only).
    """
    return Registration(buffer)


class Registration(Resource):
    """A registered buffer. Made by :func:`gdrpy.register`; a context manager.

    Copies that run when it is closed keep the pages pinned to their end. A forked child does not
    inherit the registration.
    """

    _again = "register the buffer again"
    _elsewhere = "register the buffer in each process"

    def __init__(self, buffer: Any) -> None:
        super().__init__()
        self._held: object = engine_register(buffer)

    def _release(self) -> None:
        self._held = None

    def __repr__(self) -> str:
        return f"<Registration {'CLOSED' if self.closed else 'open'}>"
