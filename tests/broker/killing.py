"""The preloaded library that kills a process at a chosen call, and who is told by it."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
from pathlib import Path

_ORDER = struct.Struct("Q")
_SOURCE = Path(__file__).with_name("killer.c")


class Killer:
    """Built into a folder. ``environment`` is what a program needs to be killed by it."""

    def __init__(self, folder: Path) -> None:
        library, order = folder / "killer.so", folder / "order"
        command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run([*command, "-o", library, _SOURCE, "-ldl"], check=True)
        order.write_bytes(bytes(_ORDER.size))
        with order.open("r+b") as file:
            self._order = mmap.mmap(file.fileno(), _ORDER.size)
        self._disarm = ctypes.CDLL(str(library)).disarm
        self.environment = {"LD_PRELOAD": str(library), "GDRPY_KILLER": str(order)}

    def arm(self, pid: int, steps: int) -> None:
        """Have a process killed at the so-manieth step from now."""
        _ORDER.pack_into(self._order, 0, pid << 32 | steps)

    def disarm(self) -> int:
        """Let it live; how many steps it had left, 0 if it is being killed."""
        left: int = self._disarm(ctypes.byref(ctypes.c_uint64.from_buffer(self._order)))
        return left


def arm_this_process(steps: int) -> None:
    """Have this very process killed, where the library is preloaded into it."""
    with Path(os.environ["GDRPY_KILLER"]).open("r+b") as file:
        _ORDER.pack_into(mmap.mmap(file.fileno(), _ORDER.size), 0, os.getpid() << 32 | steps)
