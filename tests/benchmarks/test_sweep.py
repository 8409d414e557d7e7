"""What is made of many points."""

from __future__ import annotations

import pytest

from harness import Contender, Session
from sweep import SIZE, Point, Sweep


class Fixed:
    """Takes so many nanoseconds a call."""

    def __init__(self, nanoseconds):
        self.nanoseconds = nanoseconds

    def once(self):
        return None

    def batch(self, calls):
        return calls * self.nanoseconds


@pytest.fixture
def session():
    return Session(0.001, True, lambda what: None)


@pytest.fixture
def sweep():
    return Sweep("module", "copy", (SIZE, "offset"))


class TestRatio:
    point = Point((64,), {"A": [2.0, 4.0, 90.0], "B": [1.0, 4.0, 30.0], "C": [9.0, 9.0, 9.0]})

    def test_is_the_median_of_the_rounds(self):
        assert self.point.ratio("A", ["B"]) == 2

    def test_is_over_the_way_with_the_best_median(self):
        assert self.point.ratio("C", ["A", "B"]) == self.point.ratio("C", ["B"])

    def test_is_none_where_a_way_took_no_part(self):
        assert self.point.ratio("D", ["A"]) is None
        assert self.point.ratio("A", ["D"]) is None


class TestJoined:
    def test_keeps_all_rounds_of_both_measurements(self):
        point = Point((64,), {"A": [2.0], "B": [1.0]})
        joined = point.joined(Point((64,), {"A": [3.0, 4.0], "B": [1.0, 1.0]}))
        assert joined == Point((64,), {"A": [2.0, 3.0, 4.0], "B": [1.0, 1.0, 1.0]})
        assert joined.ratio("A", ["B"]) == 3


class TestFigure:
    @pytest.fixture
    def measured(self, sweep):
        for key, ratio in (((1024, 3), 0.9), ((64, 1), 0.5), ((64, 2), None)):
            sweep.keep(Point(key, {"A": [1.0]}), {"ratio": ratio})
        return sweep

    def test_is_of_the_worst_point_and_names_it(self, measured, session):
        measured.figure(session, "at worst", ["ratio"], min)
        (found,) = session.figures
        assert (found.id, found.value) == ("module/copy/at worst", 0.5)
        assert found.where == "64 B, offset 1"

    def test_is_of_the_points_asked_for(self, measured, session):
        measured.figure(session, "at worst", ["ratio"], min, lambda key: key[0] >= 1024)
        (found,) = session.figures
        assert (found.value, found.where) == (0.9, "1 KiB, offset 3")

    def test_of_several_ratios_says_of_which_it_is(self, sweep, session):
        sweep.keep(Point((64, 0), {}), {"ratio, new": 2.0, "ratio, pinned": 3.0})
        sweep.figure(session, "at worst", ["ratio, new", "ratio, pinned"], max)
        assert [one.where for one in session.figures] == ["64 B, offset 0, pinned"]

    def test_is_not_given_where_wrong_data_arrived(self, measured, session):
        measured.wrong.append("A at 64 B, offset 1")
        measured.figure(session, "at worst", ["ratio"], min)
        assert session.figures == []


class TestMeasure:
    def test_gives_the_time_of_a_call_of_each_way(self, sweep):
        ways = [Contender("A", "", Fixed(100)), Contender("B", "", Fixed(300))]
        point = sweep.measure((64, 0), ways, 0.001)
        assert (point.median("A"), point.median("B")) == (100, 300)

    @pytest.mark.parametrize("answers", [(False, True), (True, False)])
    def test_verifies_before_and_after(self, sweep, answers):
        said = iter(answers)
        sweep.measure((64, 0), [Contender("A", "", Fixed(100), lambda _: next(said))], 0.001)
        assert sweep.wrong == ["A at 64 B, offset 0"]


class TestJson:
    def test_has_a_column_for_each_way_and_nothing_where_it_took_no_part(self, sweep):
        for key, ways in (((64, 0), "AB"), ((128, 0), "A")):
            contenders = [Contender(way, "", Fixed(1500), lambda _: True) for way in ways]
            sweep.keep(sweep.measure(key, contenders, 0.001), {"ratio": 1.0})
        found = sweep.json()
        assert found["by"] == {SIZE: [64, 128], "offset": [0, 0]}
        assert found["median"] == {"A": [1.5, 1.5], "B": [1.5, None]}
        assert found["ratios"] == {"ratio": [1.0, 1.0]}
