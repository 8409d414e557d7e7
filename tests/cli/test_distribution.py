"""Distributions of times, and their bars."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gdrpy.cli.measure.distribution import Scale, format_us
from gdrpy.cli.measure.timing import Samples


class TestScale:
    def test_counts_every_sample_once(self):
        shown = [Samples([1000, 1500, 2000]), Samples([1_000_000] * 5)]
        scale = Scale(shown, 10)
        assert [sum(scale.counts(one)) for one in shown] == [3, 5]
        assert scale.counts(shown[1]) == [0] * 9 + [5]

    def test_reaches_to_the_99th_percentile_and_counts_what_is_beyond_in_the_last_bin(self):
        one = Samples([1000] * 900 + [2000] * 90 + [1e9] * 10)
        scale = Scale([one], 4)
        assert scale.edges[0] == 1000
        assert scale.edges[-1] == 2000
        assert scale.counts(one) == [900, 0, 0, 100]

    def test_has_no_bin_narrower_than_20_ns(self):
        scale = Scale([Samples([200, 300])], 48)
        widths = [b - a for a, b in pairwise(scale.edges)]
        assert len(widths) == 4
        assert min(widths) >= 20

    def test_of_times_that_are_all_the_same_has_one_bin(self):
        one = Samples([500] * 3)
        assert Scale([one]).bars(one) == "█"

    def test_draws_a_full_bar_for_the_most_and_at_least_a_line_for_one(self):
        one = Samples([1000] * 4000 + [2000] + [4000] * 100)
        assert Scale([one], 4).bars(one) == "█ ▁▁"

    def test_says_what_it_spans(self):
        assert str(Scale([Samples([500, 20_000])], 3)) == "0.50 to 20.0 us"


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(160, "0.16"), (9994, "9.99"), (9996, "10.0"), (15_250, "15.2"), (152_600, "153")],
)
def test_times_have_about_three_digits(nanoseconds, text):
    assert format_us(nanoseconds) == text
