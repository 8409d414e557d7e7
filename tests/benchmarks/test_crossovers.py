"""Where DMA becomes the faster way."""

from __future__ import annotations

import bandwidth
from harness import RATE_UNIT, Measurement, Topic

WAYS = (
    bandwidth.MAPPING,
    bandwidth.DMA,
    bandwidth.DMA_PINNED,
    bandwidth.AUTOMATIC,
    bandwidth.AUTOMATIC_PINNED,
)


def crossover(*rates):
    """The write crossover against pageable DMA of (size, mapping, DMA, automatic) rates."""
    measured = [
        Measurement(Topic("bandwidth", operation, size, RATE_UNIT), way, "", [rate])
        for operation in ("write", "read")
        for size, mapping, dma, automatic in rates
        for way, rate in zip(WAYS, (mapping, dma, dma, automatic, automatic), strict=True)
    ]
    return bandwidth.crossovers(measured)[0]


class TestMappingFasterUpTo:
    def test_the_last_size_before_dma_wins_first(self):
        found = crossover((64, 9, 1, 9), (128, 9, 8, 9), (256, 9, 10, 9), (512, 9, 8, 9))
        assert found["mapping_faster_up_to"] == 128

    def test_no_size_where_dma_always_wins(self):
        assert crossover((64, 1, 2, 2), (128, 1, 3, 3))["mapping_faster_up_to"] is None

    def test_the_largest_size_where_the_mapping_always_wins(self):
        assert crossover((64, 3, 2, 3), (128, 3, 3, 3))["mapping_faster_up_to"] == 128


class TestWorstChoice:
    def test_is_how_much_longer_the_automatic_way_takes_than_the_better_one(self):
        found = crossover((64, 10, 5, 10), (128, 10, 12, 8), (256, 5, 12, 12))
        assert (found["worst_choice"], found["worst_choice_at"]) == (1.5, 128)


class TestNothingMeasured:
    def test_there_are_none(self):
        assert bandwidth.crossovers([]) == []
