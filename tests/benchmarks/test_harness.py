"""How samples are taken, and what is made of them."""

from __future__ import annotations

import itertools

import pytest

import harness
from harness import Contender, Measurement, Session, Statement, Topic


class Scripted:
    """Takes the nanoseconds a call that it is told to, and notes its turns."""

    def __init__(self, name, turns, nanoseconds=1_000_000):
        self.name = name
        self.turns = turns
        self.nanoseconds = nanoseconds

    def once(self):
        return self.name

    def batch(self, calls):
        self.turns.append(self.name)
        return calls * self.nanoseconds


@pytest.fixture
def session():
    return Session(0.001, True, lambda what: None)


def measurement(samples, unit="us", way="way", **fields):
    return Measurement(Topic("module", "copy", 64, unit), way, "method", samples, **fields)


class TestCompare:
    @pytest.fixture
    def rounds(self, session):
        """The turns of each round of a comparison of four."""
        turns = []
        session.compare(
            Topic("module", "copy"),
            [Contender(name, "", Scripted(name, turns)) for name in "ABCD"],
        )
        taken = turns[5::2]  # the first four say how many calls a batch has; a call comes before it
        assert len(taken) == 4 * len(session.measurements[0].samples)
        return list(zip(*[iter(taken)] * 4, strict=True))

    def test_contenders_take_turns(self, rounds):
        assert len(rounds) >= harness.MIN_SAMPLES
        assert {"".join(sorted(one)) for one in rounds} == {"ABCD"}

    def test_order_is_another_from_round_to_round(self, rounds):
        assert len(set(rounds)) > 1

    def test_nobody_follows_itself(self, rounds):
        assert all(one[-1] != following[0] for one, following in itertools.pairwise(rounds))

    def test_sample_is_the_time_of_one_call(self, session):
        fast = Contender("fast", "", Scripted("fast", [], nanoseconds=100))
        found = session.compare(Topic("module", "copy"), [fast])["fast"]
        assert set(found.samples) == {0.1}
        assert found.calls_per_sample >= harness.SHORTEST_BATCH / 100

    def test_is_verified_before_and_after(self, session):
        answers = iter([True, False])
        timed = Scripted("", [])
        contender = Contender("way", "", timed, lambda timed: next(answers))
        assert session.compare(Topic("module", "copy"), [contender])["way"].verified is False

    def test_without_data_is_neither_right_nor_wrong(self, session):
        contender = Contender("way", "", Scripted("", []))
        assert session.compare(Topic("module", "copy"), [contender])["way"].verified is None


class TestStatement:
    def test_once_gives_what_it_assigns_to_result(self):
        assert Statement("result = 6 * number", number=7).once() == 42

    def test_once_gives_none_without_a_result(self):
        assert Statement("number + 1", number=7).once() is None

    def test_batch_runs_it_so_often(self):
        seen = []
        assert Statement("append(1)", append=seen.append).batch(5) > 0
        assert len(seen) == 5


class TestDifference:
    def test_is_taken_round_by_round(self, session):
        session.derive_difference(
            measurement([5.0, 9.0, 7.0], way="A", verified=True),
            measurement([1.0, 8.0, 4.0], way="B", verified=True),
        )
        (found,) = session.measurements
        assert (found.samples, found.way) == ([4.0, 1.0, 3.0], "A - B")
        assert (found.derived, found.verified) == (True, True)

    @pytest.mark.parametrize(("one", "other"), [(False, True), (True, False), (False, None)])
    def test_with_wrong_data_is_wrong(self, session, one, other):
        session.derive_difference(
            measurement([1.0], verified=one), measurement([1.0], verified=other)
        )
        assert session.measurements[0].verified is False


class TestStatistics:
    def test_of_times(self):
        found = measurement([float(value) for value in range(200, 0, -1)]).json()
        assert (found["min"], found["median"], found["p99"], found["max"]) == (1, 100.5, 198, 200)

    def test_of_few_times_have_the_slowest_as_p99(self):
        assert measurement([1.0, 3.0, 2.0]).json()["p99"] == 3
