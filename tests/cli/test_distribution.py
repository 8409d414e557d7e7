"""Distributions of times, and their bars."""

from __future__ import annotations

import pytest

from gdrpy.cli.distribution import Distribution, Scale, format_us


class TestDistribution:
    def test_tells_its_order_statistics(self):
        one = Distribution("x", [*range(1000, 0, -1)])
        assert (one.minimum, one.median, one.maximum) == (1, 500.5, 1000)
        assert (one.percentile(99), one.percentile(99.9), one.percentile(100)) == (990, 999, 1000)

    def test_of_one_sample_is_that_sample(self):
        assert set(Distribution("x", [7]).json().values()) == {1, 7}


class TestScale:
    def test_counts_every_sample_once(self):
        shown = [Distribution("a", [100, 150, 200]), Distribution("b", [100_000] * 5)]
        scale = Scale(shown, 10)
        assert [sum(scale.counts(one)) for one in shown] == [3, 5]
        assert scale.counts(shown[1]) == [0] * 9 + [5]

    def test_reaches_to_the_99th_percentile_and_counts_what_is_beyond_in_the_last_bin(self):
        one = Distribution("x", [10.0] * 990 + [1e9] * 10)
        scale = Scale([one], 4)
        assert scale.edges[-1] == pytest.approx(10.1)
        assert scale.counts(one) == [990, 0, 0, 10]

    def test_draws_a_full_bar_for_the_most_and_at_least_a_line_for_one(self):
        one = Distribution("x", [1000] * 4000 + [2000, 4000] * 100)
        assert Scale([one], 3).bars(one) == "█▁▁"
        assert Scale([Distribution("y", [5])], 3).bars(Distribution("y", [5])) == "█  "

    def test_says_what_it_spans(self):
        assert str(Scale([Distribution("x", [500, 20_000])], 3)) == "0.50 to 20.0 us"


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(160, "0.16"), (9994, "9.99"), (9996, "10.0"), (15_250, "15.2"), (152_600, "153")],
)
def test_times_have_about_three_digits(nanoseconds, text):
    assert format_us(nanoseconds) == text
