"""Timing: calls make samples, and samples make statistics."""

from __future__ import annotations

import gc
from itertools import pairwise

import pytest

from gdrpy.cli.measure.timing import Calls, Samples, calls_for, sample, take_turns, undisturbed


class Ticking:
    """Takes ``cost`` ns a call by its own account, and writes its batches down."""

    def __init__(self, cost: int, log: list[tuple[Ticking, int]] | None = None) -> None:
        self.cost = cost
        self.log = [] if log is None else log

    def batch(self, calls: int) -> int:
        self.log.append((self, calls))
        return self.cost * calls


class TestSamples:
    def test_tell_their_order_statistics(self):
        one = Samples([*range(1000, 0, -1)])
        assert (one.minimum, one.median, one.maximum) == (1, 500.5, 1000)
        assert (one.percentile(99), one.percentile(99.9), one.percentile(100)) == (990, 999, 1000)

    def test_of_one_are_that_sample(self):
        assert set(Samples([7]).json().values()) == {1, 7}


class TestCalls:
    def test_take_their_arguments_from_the_columns_again_and_again(self):
        seen = []
        calls = Calls(lambda *arguments: seen.append(arguments), [1, 2, 3], ["x"])
        assert calls.batch(2) > 0
        assert calls.batch(3) > 0
        assert seen == [(1, "x"), (2, "x"), (3, "x"), (1, "x"), (2, "x")]


class TestUndisturbed:
    def test_leaves_the_collector_off_where_it_was(self):
        gc.disable()
        try:
            with undisturbed():
                pass
            assert not gc.isenabled()
        finally:
            gc.enable()


class TestCallsFor:
    @pytest.mark.parametrize(("cost", "calls"), [(1, 1000), (70, 14), (1000, 1), (10**9, 1)])
    def test_fill_the_time(self, cost, calls):
        assert calls_for(Ticking(cost), 1000) == calls


class TestSample:
    def test_takes_three_samples_however_short_the_time(self):
        timed = Ticking(100)
        found = sample(timed, 1e-9)
        assert found == Samples([100.0] * 3, 10_000)

    def test_collects_no_garbage(self):
        collecting = []
        sample(Calls(lambda _: collecting.append(gc.isenabled()), [0]), 1e-9)
        assert not any(collecting[1:])
        assert gc.isenabled()

    def test_begins_with_a_call_that_does_not_count(self):
        timed = Ticking(10**7)
        assert len(sample(timed, 1e-9).values) == 3
        assert [calls for _, calls in timed.log] == [1] * 6


class TestTurns:
    def test_are_one_a_round_and_none_follows_itself(self):
        log: list[tuple[Ticking, int]] = []
        one, other, third = (Ticking(100, log) for _ in range(3))
        found = take_turns([one, other, third], 10, 100, 7, 20)
        assert found == [Samples([100.0] * 20, 1)] * 3
        rounds = [who for who, _ in log[4::2]]
        assert all({*rounds[at : at + 3]} == {one, other, third} for at in range(0, 60, 3))
        assert all(a is not b for a, b in pairwise(rounds))

    def test_begin_with_a_call_that_does_not_count_unless_it_takes_long(self):
        quick, slow = Ticking(70), Ticking(3 * 10**6)
        assert take_turns([quick, slow], 1e-9, 227, 3) == [
            Samples([70.0] * 3, 3),
            Samples([3e6] * 3, 1),
        ]
        assert [calls for _, calls in quick.log] == [1, 3, 1, 3, 1, 3, 1, 3]
        assert [calls for _, calls in slow.log] == [1, 1, 1, 1, 1]
