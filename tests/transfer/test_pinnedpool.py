"""Page-locked memory that is lent, given back, and lent again."""

from __future__ import annotations

import gc
import threading

import pytest

import gdrpy
from gdrpy.memory import page_locked as pinnedpool
from gdrpy.memory.page_locked import borrow

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_kept(nothing_leaks: None) -> None:
    """The fixture frees what is kept, before a test and after it."""


def kept() -> list[int]:
    gc.collect()
    return sorted(memory.nbytes for memory in pinnedpool._kept.get(0, []))


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
