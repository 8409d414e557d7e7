"""Page-locked memory that is lent, given back, and lent again."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

import gdrpy
from gdrpy import sim
from gdrpy.memory import page_locked as pinnedpool
from gdrpy.memory.page_locked import borrow, lend

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_kept(nothing_leaks: None) -> None:
    """The fixture frees what is kept, before a test and after it."""


def kept() -> list[int]:
    gc.collect()
    pools = pinnedpool._kept, pinnedpool._kept_lent
    return sorted(memory.nbytes for pool in pools for memory in pool.get(0, []))


class TestBorrowedMemory:
    def test_is_kept_when_its_last_array_is_gone(self):
        array = borrow(1000, 0)
        part = array[10:20]
        del array
        assert kept() == []
        del part
        assert kept() == [1000]

    def test_is_lent_again_if_it_suffices(self):
        address = borrow(3 * MIB, 0).ctypes.data
        again = borrow(2 * MIB, 0)
        assert (again.ctypes.data, again.nbytes, kept()) == (address, 2 * MIB, [])
        del again
        assert kept() == [3 * MIB]

    def test_is_not_lent_for_far_less_or_more(self):
        del_me = borrow(20 * MIB, 0)
        del del_me
        small, large = borrow(2 * MIB, 0), borrow(21 * MIB, 0)
        assert kept() == [20 * MIB]
        del small, large
        assert kept() == [2 * MIB, 20 * MIB, 21 * MIB]

    def test_of_the_smallest_that_suffices_is_lent(self):
        arrays = [borrow(nbytes * MIB, 0) for nbytes in (8, 5, 6)]
        addresses = [array.ctypes.data for array in arrays]
        arrays.clear()
        assert borrow(5 * MIB, 0).ctypes.data == addresses[1]

    def test_beyond_what_is_kept_is_freed(self, monkeypatch):
        monkeypatch.setattr(pinnedpool, "KEPT_MAX", 3 * MIB)
        arrays = [borrow(MIB, 0), borrow(2 * MIB, 0), borrow(MIB, 0)]
        while arrays:
            del arrays[0]
        assert kept() == [MIB, 2 * MIB]

    def test_that_is_kept_makes_room_where_memory_is_short(self, monkeypatch):
        del_me = borrow(2 * MIB, 0)
        del del_me
        asked = []
        page_locked = gdrpy.page_locked

        def short(nbytes: int, device: int) -> gdrpy.Mapping:
            asked.append(kept())
            if len(asked) == 1:
                raise gdrpy.OutOfMemory("cuMemHostAlloc: the host has no more memory")
            return page_locked(nbytes, device)

        monkeypatch.setattr(pinnedpool, "page_locked", short)
        assert borrow(9 * MIB, 0).nbytes == 9 * MIB
        assert asked == [[2 * MIB], []]

    def test_is_one_threads_at_a_time(self):
        def work(number: int) -> None:
            for _ in range(200):
                array = borrow(4096, 0)
                array[:] = number
                if not (array == number).all():
                    wrong.append(number)

        wrong: list[int] = []
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestLentMemory:
    def test_is_the_devices_and_has_an_address_for_its_kernels(self):
        memory = lend(1000, 0)
        assert (memory.nbytes, memory.device, memory.backend) == (1000, 0, "page-locked")
        assert memory.ptr > 0
        memory.write(b"whole" * 200)
        assert memory.read() == b"whole" * 200

    def test_of_a_larger_one_before_is_as_long_as_was_asked_for(self):
        address = lend(2 * MIB, 0).address
        again = lend(MIB, 0)
        assert (again.address, again.nbytes, kept()) == (address, MIB, [])

    def test_is_kept_once_when_it_is_closed_and_dropped(self):
        memory = lend(1000, 0)
        memory.close()
        memory.close()
        assert memory.closed
        del memory
        assert kept() == [1000]

    def test_is_kept_whatever_is_kept_already(self, monkeypatch):
        monkeypatch.setattr(pinnedpool, "KEPT_MAX", 0)
        memories = [lend(MIB, 0), lend(2 * MIB, 0)]
        memories.clear()
        assert kept() == [MIB, 2 * MIB]

    def test_leaves_room_for_what_copies_keep(self, monkeypatch):
        monkeypatch.setattr(pinnedpool, "KEPT_MAX", 3 * MIB)
        lend(8 * MIB, 0).close()
        freed = sim.call_count("cuMemFreeHost")
        address = borrow(2 * MIB, 0).ctypes.data
        assert borrow(2 * MIB, 0).ctypes.data == address
        assert (sim.call_count("cuMemFreeHost"), kept()) == (freed, [2 * MIB, 8 * MIB])


#: Each with its other end, both used.
ENDS: dict[str, Callable[[], object]] = {
    "channel": lambda: used(gdrpy.Channel(16, 4), "reader"),
    "inbox": lambda: used(gdrpy.Inbox(16, 4), "writer"),
    "link": lambda: used(gdrpy.Link(16, 16, 4), "server"),
}


def used(ring, end: str) -> tuple[object, ...]:
    """It has no record before a first one, and had one when it is closed."""
    other = getattr(ring, end)()
    taker = ring if end == "writer" else other
    with pytest.raises(gdrpy.Timeout):
        taker.pop(timeout=0)
    if end == "server":
        answer = ring.submit(bytes(15) + b"?")
        assert (other.pop(), answer.done()) == (bytes(15) + b"?", False)
        other.answer(0, bytes(15) + b"!")
        assert answer.result() == bytes(15) + b"!"
    else:
        (other if end == "writer" else ring).push(bytes(15) + b"?")
        assert taker.pop() == bytes(15) + b"?"
    other.close()
    ring.close()
    return ring, other


class TestMemoryOfARing:
    @pytest.mark.parametrize("make", ENDS.values(), ids=list(ENDS))
    def test_is_given_back_without_a_wait_for_kernels_and_serves_the_next(self, make):
        ends = make()
        freed = sim.call_count("cuMemFreeHost")
        made = sim.call_count("cuMemHostAlloc")
        for _ in range(3):
            del ends
            gc.collect()
            ends = make()  # whatever the memory holds of the one before
        del ends
        gc.collect()
        assert sim.call_count("cuMemFreeHost") == freed
        assert sim.call_count("cuMemHostAlloc") == made

    @pytest.mark.parametrize("make", ENDS.values(), ids=list(ENDS))
    def test_stays_the_parents_when_a_child_drops_it(self, make):
        ends = make()
        child = os.fork()
        if child == 0:
            ends = None
            gc.collect()
            os._exit(len(kept()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert kept() == []
        del ends
        assert len(kept()) == 1

    @pytest.mark.parametrize("make", ["Channel(16, 4)", "Inbox(16, 4)", "Link(16, 16, 4)"])
    def test_is_left_at_the_end_of_the_process(self, backend, make):
        program = f"import gdrpy; ring = gdrpy.{make}; again = [ring]; again.append(again)"
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", program],
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert (done.returncode, done.stderr) == (0, "")
