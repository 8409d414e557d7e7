"""Arenas that give their memory back and wake at the same addresses."""

from __future__ import annotations

import os
import random
import threading

import pytest

import gdrpy
from gdrpy.arena.blocks import library, release_abandoned
from support import free_nbytes

MIB = 1 << 20


@pytest.fixture
def region(nothing_leaks):
    with gdrpy.alloc(8 * MIB) as region:
        yield region


@pytest.fixture
def arena(region):
    with gdrpy.Arena(region) as arena:
        yield arena
        arena.wake()
        for block in blocks(arena):
            arena.free(block)


def blocks(arena: gdrpy.Arena) -> list[int]:
    """The addresses of an arena's blocks."""
    return [block.start for block in arena._blocks()]


def fill(arena: gdrpy.Arena, sizes: list[int]) -> dict[int, bytes]:
    """Blocks with random bytes, and a free block after each."""
    made = {}
    for size in sizes:
        block = arena.allocate(size)
        gap = arena.allocate(512)
        made[block] = random.Random(size).randbytes(size)
        arena.region.write(made[block], block - arena.region.ptr)
        made[gap] = b""
    for gap in [address for address, content in made.items() if not content]:
        arena.free(gap)
        del made[gap]
    return made


def contents(arena: gdrpy.Arena, made: dict[int, bytes]) -> dict[int, bytes]:
    start = arena.region.ptr
    return {at: bytes(arena.region.read(len(one), at - start)) for at, one in made.items()}


class Copies:
    """Counts the bytes that regions copy to host memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nbytes = 0
        readinto = gdrpy.Region.readinto

        def counted(region, into, *more):
            self.nbytes += memoryview(into).nbytes
            return readinto(region, into, *more)

        monkeypatch.setattr(gdrpy.Region, "readinto", counted)


class TestSleep:
    def test_gives_the_memory_back_and_keeps_the_addresses(self, arena, region):
        made = fill(arena, [MIB, 1000, 3 * MIB])
        before, free = region.ptr, free_nbytes()
        arena.sleep()
        assert (arena.sleeping, region.detached) == (True, True)
        assert free_nbytes() == free + region.allocation_size
        arena.wake()
        assert (arena.sleeping, region.detached, region.ptr) == (False, False, before)
        assert contents(arena, made) == made

    def test_has_the_region_say_what_brings_it_back(self, arena, region):
        arena.sleep()
        with pytest.raises(gdrpy.Detached, match=r"Region\.read: .*: wake\(\) its arena first"):
            region.read(1)
        arena.wake()
        assert len(region.read(1)) == 1

    def test_twice_is_sleep_and_so_is_wake(self, arena):
        made = fill(arena, [1000])
        arena.wake()
        for _ in range(2):
            arena.sleep()
        for _ in range(2):
            arena.wake()
        assert contents(arena, made) == made

    def test_copies_the_blocks_alone(self, arena, monkeypatch):
        fill(arena, [MIB, 1000])
        copies = Copies(monkeypatch)
        arena.sleep()
        assert copies.nbytes == MIB + 1024

    def test_of_what_is_unchanged_copies_nothing_again(self, arena, monkeypatch):
        made = fill(arena, [MIB, 1000])
        arena.sleep(unchanged=True)  # makes the first copy
        arena.wake()
        copies = Copies(monkeypatch)
        for _ in range(2):
            arena.sleep(unchanged=True)
            arena.wake()
        assert copies.nbytes == 0
        assert contents(arena, made) == made

    def test_copies_all_again_if_there_are_other_blocks(self, arena, monkeypatch):
        made = fill(arena, [MIB])
        arena.sleep()
        arena.wake()
        made |= fill(arena, [2 * MIB])
        copies = Copies(monkeypatch)
        arena.sleep(unchanged=True)
        arena.wake()
        assert copies.nbytes == 3 * MIB
        assert contents(arena, made) == made

    def test_that_keeps_nothing_has_no_copy_for_the_next(self, arena, monkeypatch):
        made = fill(arena, [1000])
        arena.sleep()
        arena.wake()
        arena.sleep(keep=None)
        arena.wake()
        made = dict.fromkeys(made, b"again")
        for at, one in made.items():
            arena.region.write(one, at - arena.region.ptr)
        copies = Copies(monkeypatch)
        arena.sleep(unchanged=True)
        arena.wake()
        assert (copies.nbytes, contents(arena, made)) == (1024, made)

    def test_of_an_empty_arena_copies_nothing(self, arena, monkeypatch):
        copies = Copies(monkeypatch)
        arena.sleep()
        arena.wake()
        assert copies.nbytes == 0

    def test_lets_blocks_be_freed_and_makes_none(self, arena):
        made = fill(arena, [1000, 2000])
        arena.sleep()
        arena.free(next(iter(made)))
        with pytest.raises(gdrpy.Detached, match=r"Arena.allocate: the arena sleeps: wake\(\) it"):
            arena.allocate(1)
        arena.wake()
        made.pop(next(iter(made)))
        assert contents(arena, made) == made

    def test_leaves_the_arena_awake_if_the_region_is_in_use(self, arena, region):
        made = fill(arena, [1000])
        view = region.array().numpy()
        with pytest.raises(BufferError, match="detach"):
            arena.sleep()
        assert not arena.sleeping
        del view
        assert contents(arena, made) == made

    @pytest.mark.parametrize("failing", ["gdrpy.arena.arena.alloc", "attach", "write"])
    @pytest.mark.parametrize("error", [gdrpy.OutOfMemory, KeyboardInterrupt])
    def test_that_cannot_wake_sleeps_on_and_loses_nothing(self, arena, monkeypatch, failing, error):
        made = fill(arena, [1000])
        arena.sleep()

        def refuse(*_: object, **__: object) -> None:
            raise error("not now")

        with monkeypatch.context() as patch:
            if failing.startswith("gdrpy"):
                patch.setattr(failing, refuse)
            else:
                patch.setattr(gdrpy.Region, failing, refuse)
            with pytest.raises(error, match="not now"):
                arena.wake()
        assert (arena.sleeping, arena.region.detached) == (True, True)
        arena.wake()
        assert contents(arena, made) == made

    def test_that_can_neither_wake_nor_detach_again_wakes_later(self, arena, monkeypatch):
        made = fill(arena, [1000])
        arena.sleep()
        views = []

        def refuse(region, *_: object) -> None:
            views.append(region.array().numpy())
            raise gdrpy.OutOfMemory("not now")

        for call in (arena.wake, arena.wake):
            with monkeypatch.context() as patch:
                patch.setattr(gdrpy.Region, "write", refuse)
                with pytest.raises(gdrpy.OutOfMemory, match="not now"):
                    call()
        assert (arena.sleeping, arena.region.detached) == (True, False)
        views.clear()
        arena.wake()
        assert contents(arena, made) == made

    def test_goes_on_after_a_wake_that_failed_halfway(self, arena, monkeypatch):
        made = fill(arena, [1000])
        arena.sleep()
        with monkeypatch.context() as patch:
            patch.setattr(gdrpy.Region, "write", None)
            patch.setattr(gdrpy.Region, "detach", None)
            with pytest.raises(TypeError):
                arena.wake()
        assert (arena.sleeping, arena.region.detached) == (True, False)
        copies = Copies(monkeypatch)
        arena.sleep()
        assert (copies.nbytes, arena.region.detached) == (0, True)
        arena.wake()
        assert contents(arena, made) == made

    def test_ends_with_a_region_that_was_attached_by_hand(self, arena, region):
        made = fill(arena, [1000])
        arena.sleep()
        with gdrpy.alloc(region.nbytes) as other:
            region.attach(other._memory.fd)
            arena.wake()
            assert contents(arena, made) == made
            with pytest.raises(ValueError, match=r"the whole of a region of gdrpy.alloc\(\)"):
                arena.sleep()  # it is another owner's memory now
        assert not arena.sleeping

    def test_refuses_what_another_owner_allocated(self, region):
        fd = region.export()
        with gdrpy.Region.from_fd(fd) as opened, gdrpy.Arena(opened) as arena:
            with pytest.raises(ValueError, match=r"the whole of a region of gdrpy.alloc\(\)"):
                arena.sleep()
            assert not opened.detached
        os.close(fd)

    def test_of_a_closed_region_cannot_wake(self, nothing_leaks):
        region = gdrpy.alloc(4096)
        arena = gdrpy.Arena(region)
        block = arena.allocate(1)
        arena.sleep()
        with pytest.warns(gdrpy.StillInUse):
            region.__exit__(None, None, None)
        with pytest.raises(gdrpy.Closed):
            arena.wake()
        with pytest.raises(gdrpy.Detached):
            arena.allocate(1)
        arena.free(block)
        arena.close()

    def test_lets_finalizers_of_other_threads_free_blocks(self, arena, monkeypatch):
        made = fill(arena, [1000, 2000])
        freed = threading.Thread(target=arena.free, args=(next(iter(made)),))

        def waiting(call: str, regions: object) -> None:
            freed.start()
            freed.join()

        monkeypatch.setattr("gdrpy.arena.arena.wait_for_work", waiting)
        arena.sleep()
        arena.wake()
        made.pop(next(iter(made)))
        assert contents(arena, made) == made

    def test_frees_the_host_memory_once_nothing_is_kept(self, arena):
        fill(arena, [1000])
        arena.sleep()
        host = arena._host
        arena.wake()
        assert not host.closed
        arena.sleep(keep=None)
        assert host.closed

    def test_frees_the_host_memory_with_an_arena_in_use(self, region):
        arena = gdrpy.Arena(region)
        block = arena.allocate(1)
        arena.sleep()
        arena.wake()
        host = arena._host
        with pytest.warns(gdrpy.StillInUse):
            arena.__exit__(None, None, None)
        assert host.closed
        assert not library().gdrpy_arena_free(arena._slot, block)
        release_abandoned()

    def test_copies_nothing_before_it_is_refused(self, arena, region, monkeypatch):
        fill(arena, [1000])
        copies = Copies(monkeypatch)
        view = region.array().numpy()
        with pytest.raises(BufferError, match="views or running copies still use the memory"):
            arena.sleep()
        assert copies.nbytes == 0
        del view

    def test_wants_the_whole_region(self, region):
        with gdrpy.Arena(region, MIB) as arena:
            with pytest.raises(ValueError, match="Arena.sleep: the arena must have the whole of"):
                arena.sleep()
            assert not arena.sleeping

    def test_of_a_brokers_region_is_refused(self, nothing_leaks):
        with (
            gdrpy.broker.temporary() as socket,
            gdrpy.connect(socket) as broker,
            broker.allocate("a", 4096) as region,
            gdrpy.Arena(region) as arena,
            pytest.raises(ValueError, match=r"a region of gdrpy.alloc\(\), not 4 KiB at"),
        ):
            arena.sleep()

    @pytest.mark.parametrize("keep", ["disk", 1, True])
    def test_keeps_on_the_host_or_not_at_all(self, arena, keep):
        with pytest.raises(ValueError, match='Arena.sleep: keep must be "host" or None, not '):
            arena.sleep(keep)

    def test_ends_with_the_arena(self, region):
        arena = gdrpy.Arena(region)
        arena.sleep()
        arena.close()
        assert region.detached
