"""Whatever fails inside a call, the call says so or does its work, and leaves nothing behind.

Linux lets a thread's n-th allocation, or copy from or to user space, fail. Each call is repeated
with n from 1 on until it ends before anything has failed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import standin
from gdrdrv import READ_ONLY, REVOCABLE, ZERO_AFTER, Gdrdrv
from standin import SCATTERED, View

PIN_V2 = 0xC020DA07

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

DEBUGFS = Path("/sys/kernel/debug")
#: What may fail: allocations that could wait as well, single pages; and no word in the log of each.
SETTINGS = {
    "failslab": {"ignore-gfp-wait": "N", "verbose": "0"},
    "fail_page_alloc": {
        "ignore-gfp-wait": "N",
        "ignore-gfp-highmem": "N",
        "min-order": "0",
        "verbose": "0",
    },
    "fail_usercopy": {"verbose": "0"},
}


@pytest.fixture(scope="module")
def fail_nth() -> Iterator[int]:
    """The file that takes the number of what is to fail."""
    for fault, settings in SETTINGS.items():
        for name, value in settings.items():
            (DEBUGFS / fault / name).write_text(value)
    fd = os.open("/proc/thread-self/fail-nth", os.O_RDWR)
    yield fd
    os.close(fd)


#: What happens once, as the first touch of a page, is counted too and shifts the rest: what a sweep
#: has missed so the next one meets.
_MORE_SWEEPS = 3


class Injection:
    """A context in which the n-th thing that can fail does fail."""

    def __init__(self, fail_nth: int, nth: int) -> None:
        self._file = fail_nth
        self._nth = b"%d" % nth
        self.happened = False

    def __enter__(self) -> None:
        os.pwrite(self._file, self._nth, 0)

    def __exit__(self, *exception: object) -> None:
        # What asks for the rest and takes it back copies too, and so may fail in its turn: not 0.
        with suppress(OSError):
            self.happened = os.pread(self._file, 16, 0) == b"0\n"
        with suppress(OSError):
            os.pwrite(self._file, b"0", 0)


@contextmanager
def pinned(flags: int = 0) -> Iterator[tuple[View, Gdrdrv, int]]:
    """A view, a node and the handle of the pin of one through the other."""
    with View(pages=4) as view, Gdrdrv() as node:
        yield view, node, node.pin(view.address, view.size, flags)


def opening(injection: Injection) -> None:
    with injection:
        fd = os.open("/dev/gdrdrv", os.O_RDWR)
    os.close(fd)


def pinning_v2(injection: Injection) -> None:
    with View(pages=4) as view, Gdrdrv() as node:
        request = struct.pack("QQIIQ", view.address, view.size, 0, 0, 0)
        try:
            with injection:
                fcntl.ioctl(node, PIN_V2, bytearray(request), True)
        except OSError:
            assert standin.stats().pinned_pages == 0
            raise


def pinning_v3(injection: Injection) -> None:
    with View(pages=4, flags=SCATTERED) as view, Gdrdrv() as node:
        try:
            with injection:
                node.pin(view.address, view.size, REVOCABLE)
        except OSError:
            assert standin.stats().pinned_pages == 0
            raise


def sharing(injection: Injection, flags: int = 0) -> None:
    with pinned() as (_, node, handle):
        with injection:
            fd = node.share(handle, flags)
        os.close(fd)


def sharing_read_only(injection: Injection) -> None:
    sharing(injection, READ_ONLY)


def mapping_by_handle(injection: Injection) -> None:
    with pinned() as (view, node, handle):
        try:
            with injection:
                mapped = node.map(handle, view.size)
        except OSError:
            node.map(handle, view.size).close()
            raise
        mapped.close()


def mapping_a_share(injection: Injection) -> None:
    with pinned() as (view, node, handle):
        fd = node.share(handle)
        try:
            with injection:
                mapped = mmap.mmap(fd, view.size)
            mapped.close()
        finally:
            os.close(fd)


def touching(injection: Injection) -> None:
    """In the middle of so much that the page table there is of this mapping alone, and missing."""
    with View(pages=64) as view, Gdrdrv() as node:
        handle = node.pin(view.address, view.size)
        with node.map(handle, view.size) as mapped, injection:
            mapped[view.size // 2] = 1


def touching_what_was_revoked(injection: Injection) -> None:
    flags = REVOCABLE | ZERO_AFTER
    with pinned(flags) as (view, node, handle), node.map(handle, view.size) as mapped:
        view.unregister()
        with injection:
            mapped[0] = 1


def unmapping(injection: Injection) -> None:
    with pinned() as (view, node, handle):
        offset = handle * mmap.PAGESIZE
        address = LIBC.mmap(None, view.size, mmap.PROT_WRITE, mmap.MAP_SHARED, node.fd, offset)
        ctypes.memset(address, 1, 1)
        with injection:
            status = LIBC.munmap(address, view.size)
        error = ctypes.get_errno()
        if status:
            assert LIBC.munmap(address, view.size) == 0
            raise OSError(error, "munmap")
        node.map(handle, view.size).close()


def revoking(injection: Injection) -> None:
    with pinned(REVOCABLE) as (view, node, handle), node.map(handle, view.size) as mapped:
        mapped[0] = 1
        try:
            with injection:
                view.unregister()
        except OSError:
            view.unregister()
            raise
        finally:
            assert len(node.events()) == 1


def reading_events(injection: Injection) -> None:
    with pinned(REVOCABLE) as (view, node, _):
        view.unregister()
        try:
            with injection:
                node.events()
        except OSError:
            assert len(node.events()) == 1
            raise


def unpinning(injection: Injection) -> None:
    with pinned() as (_, node, handle):
        try:
            with injection:
                node.unpin(handle)
        except OSError:
            node.unpin(handle)
            raise


def closing(injection: Injection) -> None:
    with View(pages=4) as view:
        node = Gdrdrv()
        node.pin(view.address, view.size, 0)
        with injection:
            os.close(node.fd)
        assert standin.stats().pinned_pages == 0


MEMORY, COPY = errno.ENOMEM, errno.EFAULT

#: How many things at least can fail in each, and what it may say then. A fault of a page is
#: repeated until it succeeds; in what closing does nothing can fail.
SCENARIOS: dict[Callable[[Injection], None], tuple[int, set[int]]] = {
    opening: (20, {MEMORY, COPY}),
    pinning_v2: (15, {MEMORY, COPY}),
    pinning_v3: (20, {MEMORY, COPY}),
    sharing: (1, {COPY}),
    sharing_read_only: (3, {MEMORY, COPY}),
    mapping_by_handle: (10, {MEMORY}),
    mapping_a_share: (10, {MEMORY}),
    touching: (1, set()),
    touching_what_was_revoked: (0, set()),
    unmapping: (1, {MEMORY}),
    revoking: (1, {COPY}),
    reading_events: (1, {COPY}),
    unpinning: (1, {COPY}),
    closing: (0, set()),
}


def held() -> tuple[object, ...]:
    """Descriptors, blocks and what else the stand-in counts, pins, and users who have any."""
    users = Path("/proc/driver/gdrdrv/stats").read_text().partition("user")[2]
    pins = Path("/proc/driver/gdrdrv/pins").read_text()
    return len(list(Path("/proc/self/fd").iterdir())), standin.live(), pins, users


def sweep(fail_nth: int, scenario: Callable[[Injection], None]) -> tuple[set[int], int]:
    """Fail the first thing that can fail, then the second, ...: the errors met, and how many."""
    before = held()
    met: set[int] = set()
    nth, happened = 0, True
    while happened:
        nth += 1
        injection = Injection(fail_nth, nth)
        try:
            scenario(injection)
        except OSError as error:
            met.add(error.errno or 0)
        assert held() == before, f"after failure {nth}"
        happened = injection.happened
    return met, nth


class TestFailure:
    @pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
    def test_is_told_and_leaves_nothing_behind(
        self, fail_nth: int, scenario: Callable[[Injection], None]
    ) -> None:
        points, errors = SCENARIOS[scenario]
        met, nth = sweep(fail_nth, scenario)
        for _ in range(_MORE_SWEEPS):
            if met != errors:
                met |= sweep(fail_nth, scenario)[0]
        assert met == errors
        assert nth > points
