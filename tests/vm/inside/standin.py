"""The nodes of the stand-in modules, as ``gpustandin.h`` and ``p2pprobe.h`` describe them."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Self

PAGE = 65536
#: NVIDIA's own nv-p2p.c has none of our p2p.c's parameters.
GENUINE = not Path("/sys/module/gpustandin/parameters/table_version").exists()
HAS_KASAN = " kasan_report" in Path("/proc/kallsyms").read_text()
WRITE, READ = 1, 2


class Block(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint64),
        ("id", ctypes.c_uint64),
        ("ordinal", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    ]


class Pte(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_uint64),
        ("physical", ctypes.c_uint64),
        ("mode", ctypes.c_uint32),
        ("writable", ctypes.c_uint32),
    ]


class Stats(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "blocks",
            "block_pages",
            "registrations",
            "pins",
            "persistent_pins",
            "pinned_pages",
            "held_callbacks",
            "waiting_calls",
            "callbacks",
            "late_puts",
            "forced_bar1_pins",
            "gets",
            "lost_tables",
        )
    ]


class Get(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("driver_flags", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("page_size", ctypes.c_uint32),
        ("entries", ctypes.c_uint32),
        ("table_flags", ctypes.c_uint32),
        ("first", ctypes.c_uint64),
        ("last", ctypes.c_uint64),
    ]


class Mode(IntEnum):
    """The cache mode of a page table entry."""

    WB, WC, UC_MINUS, UC, OTHER = range(5)


class Fault(IntEnum):
    """What the stand-in can do wrong."""

    WARNING, USE_AFTER_FREE, LEAK, LOCK_INVERSION, SLEEP_IN_ATOMIC, DATA_RACE = range(6)


def _command(kind: str, direction: int, number: int, size: int = 0) -> int:
    return direction << 30 | size << 16 | ord(kind) << 8 | number


CREATE = _command("G", READ | WRITE, 1, ctypes.sizeof(Block))
ATTACH = _command("G", WRITE, 2, 4)
INFO = _command("G", READ, 3, ctypes.sizeof(Block))
REGISTER = _command("G", WRITE, 4, 8)
UNREGISTER = _command("G", WRITE, 5, 8)
FAIL_GET = _command("G", WRITE, 16, 4)
HOLD_CALLBACKS = _command("G", WRITE, 17, 4)
PTE = _command("G", READ | WRITE, 18, ctypes.sizeof(Pte))
STATS = _command("G", READ, 19, ctypes.sizeof(Stats))
FAULT = _command("G", WRITE, 20, 4)
FREE_IN_GET = _command("G", WRITE, 21, 4)
GET = _command("P", READ | WRITE, 1, ctypes.sizeof(Get))
PUT = _command("P", 0, 2)
CALLBACKS = _command("P", 0, 3)
FORGET = _command("P", 0, 4)

SCATTERED = 1
PERSISTENT, PUT_IN_CALLBACK = 1, 2
BEFORE_CALLBACK, AFTER_CALLBACK = 1, 2


class Node:
    """An open node; leaving the context closes it."""

    path = "/dev/gpustandin"

    def __init__(self) -> None:
        self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class View(Node):
    """A view of a block, which is this process's GPU memory at ``address``."""

    def __init__(self, pages: int, flags: int = 0) -> None:
        super().__init__()
        self.size = pages * PAGE
        # Room to find a multiple of the page in.
        self._room = mmap.mmap(-1, self.size + PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._room))
        self.address = -(-start // PAGE) * PAGE
        try:
            fcntl.ioctl(self.fd, CREATE, Block(size=self.size, flags=flags))
            self.register()
        except OSError:
            self.close()
            raise

    def register(self) -> None:
        fcntl.ioctl(self.fd, REGISTER, ctypes.c_uint64(self.address))

    def unregister(self) -> None:
        fcntl.ioctl(self.fd, UNREGISTER, ctypes.c_uint64(self.address))


class Probe(Node):
    """A driver with at most one pin."""

    path = "/dev/p2pprobe"

    def get(self, address: int, size: int, flags: int = 0, driver_flags: int = 0) -> Get:
        wanted = Get(address=address, size=size, flags=flags, driver_flags=driver_flags)
        fcntl.ioctl(self.fd, GET, wanted)
        return wanted

    def put(self) -> None:
        fcntl.ioctl(self.fd, PUT)

    def forget(self) -> None:
        """Has the pin neither put nor used again."""
        fcntl.ioctl(self.fd, FORGET)

    @property
    def callbacks(self) -> int:
        return fcntl.ioctl(self.fd, CALLBACKS)


def stats() -> Stats:
    found = Stats()
    with Node() as node:
        fcntl.ioctl(node.fd, STATS, found)
    return found


def live() -> tuple[int, int, int, int]:
    """Blocks, registrations, pins and persistent pins that there are."""
    found = stats()
    return found.blocks, found.registrations, found.pins, found.persistent_pins


def fail_next_get(error: int) -> None:
    with Node() as node:
        fcntl.ioctl(node.fd, FAIL_GET, ctypes.c_int32(error))


def free_in_next_get(when: int) -> None:
    """Frees the memory of the next revocable pin while it is being pinned."""
    with Node() as node:
        fcntl.ioctl(node.fd, FREE_IN_GET, ctypes.c_uint32(when))


def hold_callbacks(hold: bool) -> None:
    with Node() as node:
        fcntl.ioctl(node.fd, HOLD_CALLBACKS, ctypes.c_uint32(hold))


def make_fault(kind: Fault) -> None:
    with Node() as node:
        fcntl.ioctl(node.fd, FAULT, ctypes.c_uint32(kind))


def pte(address: int) -> Pte:
    """The page table entry of an address of this process. EFAULT: there is none."""
    query = Pte(address=address)
    with Node() as node:
        fcntl.ioctl(node.fd, PTE, query)
    return query


def await_stats(condition: Callable[[Stats], bool]) -> None:
    """Returns once the counts are so; the test's own time limit ends what never comes."""
    while not condition(stats()):
        time.sleep(0.001)
