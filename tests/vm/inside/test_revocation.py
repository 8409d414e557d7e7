"""GPU memory is freed while eight processes have it mapped, by pins of their own and by shares.

What one process can see of a revocation is tested in ``../abi``.
"""

from __future__ import annotations

import os
import signal

import pytest
from gdrdrv import REVOCABLE, REVOKED, ZERO_AFTER, Event
from holders import AFTERWARDS, Mapping, Owner, Told


class TestZeroPage:
    def test_nobody_crashes_and_each_is_told_once(self) -> None:
        with Owner(REVOCABLE | ZERO_AFTER) as owner:
            holders = owner.fork()
            owner.free(holders)
            ends = [holder.await_end() for holder in holders]
        assert all(isinstance(end, Told) and end.times == 1 for end in ends), ends

    def test_stores_after_the_end_do_not_reach_the_memory(self) -> None:
        with Owner(REVOCABLE | ZERO_AFTER) as owner:
            holders = owner.fork()
            owner.free(holders)
            before = owner.block.words()
            ends = [holder.await_end() for holder in holders]
            assert owner.block.words() == before
        for holder, end in zip(holders, ends, strict=True):
            assert isinstance(end, Told), end
            assert before[holder.number] <= end.stored

    def test_owner_who_has_it_mapped_is_told_as_the_others(self) -> None:
        with Owner(REVOCABLE | ZERO_AFTER) as owner:
            holders = owner.fork()
            mine = Mapping(owner.node.fd, owner.node.map(owner.handle, owner.block.size), 9)
            mine.store(7)
            assert not mine.is_told()
            owner.free(holders)
            assert mine.is_told()
            assert owner.node.events() == [Event(owner.handle, 1, REVOKED, 0)]
            assert mine.load() == 0
            mine.store(AFTERWARDS)
            assert owner.block.words()[9] == 7
            ends = [holder.await_end() for holder in holders]
        assert all(isinstance(end, Told) and end.times == 1 for end in ends), ends


class TestBusError:
    def test_each_that_touches_the_mapping_gets_it(self) -> None:
        with Owner(REVOCABLE) as owner:
            holders = owner.fork()
            owner.free(holders)
            ends = [holder.await_end() for holder in holders]
        assert ends == [signal.SIGBUS] * 8

    def test_who_does_not_touch_it_is_told_and_goes_on(self) -> None:
        with Owner(REVOCABLE) as owner:
            holders = owner.fork(stores=False)
            owner.free(holders)
            ends = [holder.await_end() for holder in holders]
        assert all(isinstance(end, Told) and end.times == 1 for end in ends), ends


class TestProcessThatIsGone:
    @pytest.mark.parametrize("victim", [0, 1], ids=["sharer", "pinner"])
    def test_leaves_the_others_as_they_are(self, victim: int) -> None:
        with Owner(REVOCABLE | ZERO_AFTER) as owner:
            holders = owner.fork()
            killed = holders.pop(victim)
            os.kill(killed.pid, signal.SIGKILL)
            assert killed.await_end() == signal.SIGKILL
            owner.free([*holders, killed])
            ends = [holder.await_end() for holder in holders]
        assert all(isinstance(end, Told) and end.times == 1 for end in ends), ends
