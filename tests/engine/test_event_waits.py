"""Long copies of registered memory, during which the thread sleeps until the engine interrupts."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gdrpy
import rmclient as rm

ON_NVRM = {"GDRPY_SIM": "1", "GDRPY_BACKEND": "nvrm"}
MIB = 1 << 20
#: The least for which a thread sleeps.
LONG = 32 * MIB

pytestmark = pytest.mark.preloaded(**ON_NVRM)


@contextmanager
def filled() -> Iterator[tuple[gdrpy.Region, bytearray]]:
    """A region, and a registered buffer that the engine has pinned, with other content."""
    buffer = bytearray(LONG)
    with gdrpy.alloc(LONG) as region, gdrpy.register(buffer):
        region.cpu.write(random.Random(1).randbytes(LONG))
        with memoryview(buffer) as view:
            region.readinto(view[: 2 * MIB], via="engine")
        buffer[:] = bytes(LONG)
        yield region, buffer
        assert buffer == region.cpu.read()
        assert rm.violations() == []


def begin_read(region: gdrpy.Region, buffer: bytearray, fault: str = "") -> threading.Thread:
    """A thread that waits for a read, which takes the engine 30 seconds and meets a fault then."""
    rm.set_fault(f"STALL:1:30{fault}")
    thread = threading.Thread(target=region.readinto, args=(buffer,), kwargs={"via": "engine"})
    thread.start()
    while not rm.count("stalls"):
        pass
    return thread


def end_read(thread: threading.Thread) -> int:
    """Let the engine go on; returns how many interrupts have been heard meanwhile."""
    heard = rm.count("wakes")
    rm.pass_time(31)
    thread.join()
    return rm.count("wakes") - heard


def sleep() -> None:
    """Wait until a thread sleeps for as long as it may before it looks again."""
    while not rm.count("sleepers"):
        pass
    rm.pass_time(1)
    while not rm.count("sleepers"):
        pass


def made() -> tuple[int, int]:
    """Objects of the driver's, and open files."""
    return rm.count("parts"), sum(1 for _ in Path("/proc/self/fd").iterdir())


class TestThread:
    def test_sleeps_until_the_interrupt(self) -> None:
        with filled() as (region, buffer):
            thread = begin_read(region, buffer)
            sleep()
            assert end_read(thread) == 1

    def test_sleeps_for_writes_too(self) -> None:
        with filled() as (region, buffer):
            buffer[:] = random.Random(2).randbytes(LONG)
            rm.set_fault("STALL:1:30")
            kwargs = {"via": "engine"}
            thread = threading.Thread(target=region.write, args=(buffer,), kwargs=kwargs)
            thread.start()
            sleep()
            assert end_read(thread) == 1

    def test_has_a_descriptor_that_later_copies_use(self) -> None:
        with filled() as (region, buffer):
            before = made()
            with memoryview(buffer) as view:
                region.readinto(view[:-1], via="engine")
            assert made() == before
            for _ in range(3):
                region.readinto(buffer, via="engine")
                assert made() == (before[0] + 1, before[1] + 1)

    def test_shares_it_with_none_that_sleeps_too(self) -> None:
        with filled() as (region, buffer):
            before = made()
            other = bytearray(LONG)
            with gdrpy.register(other):
                first = begin_read(region, buffer)
                sleep()
                second = threading.Thread(
                    target=region.readinto, args=(other,), kwargs={"via": "engine"}
                )
                second.start()
                while rm.count("sleepers") < 2:
                    pass
                end_read(first)
                second.join()
            assert other == buffer
            assert made() == (before[0] + 2, before[1] + 2)

    def test_looks_at_the_channels_death_meanwhile(self) -> None:
        with filled() as (region, buffer):
            thread = begin_read(region, buffer, ",ENGINE:1:31")
            sleep()
            end_read(thread)
            assert rm.count("xids") == 1


class TestWithoutEvents:
    @pytest.mark.parametrize(
        ("fault", "again"),
        [
            ("OS_EVENT:1:0x56", 0),
            ("EVENT:1:0x56", 0),
            (f"REGISTER_FD:1:{errno.EINVAL}", 0),
            ("OS_EVENT:1:0x51", 1),
            ("EVENT:1:0x51", 1),
            (f"open:/dev/nvidia0:{errno.EMFILE}", 1),
        ],
    )
    def test_threads_wait_too_and_ask_again_if_only_room_lacked(
        self, fault: str, again: int
    ) -> None:
        with filled() as (region, buffer):
            before = made()
            rm.set_fault(fault)
            region.readinto(buffer, via="engine")
            assert made() == before
            rm.set_fault("")
            region.readinto(buffer, via="engine")
            assert made() == (before[0] + again, before[1] + again)

    def test_because_interrupts_are_lost_they_are_not_waited_for_again(self) -> None:
        with filled() as (region, buffer):
            thread = begin_read(region, buffer, ",INTERRUPT:1:1")
            sleep()
            assert end_read(thread) == 0
            assert buffer == region.cpu.read()
            for _ in range(3):
                buffer[:] = bytes(LONG)
                thread = begin_read(region, buffer)
                assert end_read(thread) == 0
