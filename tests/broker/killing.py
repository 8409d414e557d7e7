"""The preloaded library that kills a process at a chosen call, and who is told by it."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import subprocess
from pathlib import Path

_ORDER = struct.Struct("Q")
_SOURCE = Path(__file__).with_name("killer.c")


class Killer:
    """Built into a folder. ``environment`` is what a program needs to be killed by it, or to get
    another signal.
    """

    def __init__(self, folder: Path, number: int = signal.SIGKILL) -> None:
        library, order = folder / "killer.so", folder / "order"
        command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run([*command, "-o", library, _SOURCE, "-ldl"], check=True)
        order.write_bytes(bytes(_ORDER.size))
        with order.open("r+b") as file:
            self._order = mmap.mmap(file.fileno(), _ORDER.size)
        self._disarm = ctypes.CDLL(str(library)).disarm
        self.environment = {
            "LD_PRELOAD": str(library),
            "GDRPY_KILLER": str(order),
            "GDRPY_KILLER_SIGNAL": str(int(number)),
        }

    def arm(self, pid: int, steps: int) -> None:
        """Have a process killed at the so-manieth step from now."""
        _ORDER.pack_into(self._order, 0, pid << 32 | steps)

    def disarm(self) -> int:
        """Let it live; how many steps it had left, 0 if it is being killed."""
        left: int = self._disarm(ctypes.byref(ctypes.c_uint64.from_buffer(self._order)))
        return left


class Steps:
    """The steps of this very process, where the library is preloaded into it."""

    def __init__(self) -> None:
        with Path(os.environ["GDRPY_KILLER"]).open("r+b") as file:
            self._order = mmap.mmap(file.fileno(), _ORDER.size)

    def arm(self, steps: int) -> None:
        """Have this process get the signal at the so-manieth step from now; never if 0."""
        _ORDER.pack_into(self._order, 0, os.getpid() << 32 | steps)
