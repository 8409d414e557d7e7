"""Sweeps as tables."""

from __future__ import annotations

import pytest

from sweep_tables import sweep_tables


@pytest.fixture
def engine():
    """A sweep over sizes and offsets, as in a result; no routine took part at the last size."""
    return {
        "module": "engine",
        "operation": "to the mapping",
        "by": {"size": [4, 4, 7, 8], "offset": [0, 1, 0, 0]},
        "median": {
            "engine": [2.0, 9.0, 9.0, 3.0],
            "engine again": [2.0, 9.0, 9.0, 3.0],
            "fast": [1.0, 1.0, 1.0, None],
            "slow": [4.0, 4.0, 4.0, None],
            "memcpy": [0.5, 9.0, 9.0, 6.0],
        },
        "ratios": {"best routine over engine": [0.5, 0.75, 1.0, None]},
    }


class TestAlignments:
    def test_a_row_is_of_all_points_up_to_the_next_power_of_two(self, engine):
        (table,) = sweep_tables(engine)
        assert table.rows[0] == ["4 B", "3", "2.00", "0.500", "fast", "0.750 (0.500)"]

    def test_a_row_without_routines_has_the_engine_and_memcpy_alone(self, engine):
        (table,) = sweep_tables(engine)
        assert table.rows[1] == ["8 B", "1", "3.00", "6.00", "-", "-"]


class TestSizes:
    def test_a_way_measured_once_more_has_no_column(self):
        (table,) = sweep_tables(
            {
                "module": "transfers",
                "operation": "write",
                "by": {"size": [4]},
                "median": {"automatic, pinned": [1.0], "automatic again, pinned": [1.0]},
                "ratios": {"automatic over itself, pinned": [1.0]},
            }
        )
        assert table.columns == ["size", "automatic", "automatic over itself"]
