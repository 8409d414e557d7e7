"""Sweeps as tables of text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from statistics import median
from typing import Any

from sweep import AGAIN, SIZE
from table import Table
from words import ABSENT, figure, size_words, way

#: The size from which tables show rates instead of times.
RATES_FROM = 64 << 10

Sweep = dict[str, Any]
#: Figures at every point, by way or by ratio.
Columns = dict[str, list[float | None]]


def sweep_tables(sweep: Sweep) -> Iterator[Table]:
    """The tables of one sweep."""
    by = list(sweep["by"])
    if by == [SIZE]:
        yield from _by_size(sweep)
    elif SIZE in by:
        yield _at_worst(sweep)


def rates(sweep: Sweep, name: str) -> list[float | None]:
    """GB/s of a way at each point."""
    sizes = sweep["by"][SIZE]
    return [
        None if taken is None else nbytes / taken / 1e3
        for nbytes, taken in zip(sizes, sweep["median"][name], strict=True)
    ]


def _by_size(sweep: Sweep) -> Iterator[Table]:
    """For each kind of host memory, times of small sizes and rates of large ones; the ratios."""
    for kind in _kinds(sweep):
        title = ", ".join(filter(None, (f"{sweep['module']}: {sweep['operation']}", kind)))
        times = _of(sweep["median"], kind)
        fast = {name: rates(sweep, way(name, kind)) for name in times}
        ratios = _of(sweep["ratios"], kind)
        for words, columns, sizes in (
            ("us", times, range(RATES_FROM)),
            ("GB/s", fast, range(RATES_FROM, sys.maxsize)),
        ):
            table = _columns(sweep, f"{title}, {words} (median)", columns | ratios, sizes)
            if table.rows:
                yield table


def _kinds(sweep: Sweep) -> list[str]:
    """The kinds of host memory among the ways of a sweep; one empty word if it has none."""
    return list(dict.fromkeys(name.partition(", ")[2] for name in sweep["median"]))


def _of(columns: Columns, kind: str) -> Columns:
    """The columns of one kind, by their names without it."""
    return {
        name.partition(", ")[0]: column
        for name, column in columns.items()
        if name.partition(", ")[2] == kind and not name.partition(", ")[0].endswith(AGAIN)
    }


def _columns(sweep: Sweep, title: str, columns: Columns, shown: range) -> Table:
    sizes = sweep["by"][SIZE]
    rows = [
        [size_words(size), *(_cell(column[row]) for column in columns.values())]
        for row, size in enumerate(sizes)
        if size in shown
    ]
    return Table(title, [SIZE, *columns], rows)


def _at_worst(sweep: Sweep) -> Table:
    """A row for all points from one power of two to the next: each ratio's median and its least.

    The times are those of the first point, which is aligned and as long as that power.
    """
    ways = [name for name in sweep["median"] if not name.endswith(AGAIN)]
    rows = []
    for points in _by_power(sweep["by"][SIZE]):
        times = {name: sweep["median"][name][points[0]] for name in ways}
        routines = [(times[name], name) for name in ways[1:-1] if times[name] is not None]
        ratios = (
            [column[row] for row in points if column[row] is not None]
            for column in sweep["ratios"].values()
        )
        rows.append(
            [
                size_words(sweep["by"][SIZE][points[0]]),
                str(len(points)),
                *(_cell(times[name]) for name in (ways[0], ways[-1])),
                min(routines)[1] if routines else ABSENT,
                *(f"{figure(median(of))} ({figure(min(of))})" if of else ABSENT for of in ratios),
            ]
        )
    columns = [f"{ways[0]}, us", f"{ways[-1]}, us", "best routine", *sweep["ratios"]]
    title = f"{sweep['module']}: {sweep['operation']}, medians (and the least)"
    return Table(title, ["size from", "points", *columns], rows)


def _by_power(sizes: list[int]) -> Iterator[list[int]]:
    """The numbers of points, those from one power of two to the next together."""
    for _, points in groupby(range(len(sizes)), lambda row: sizes[row].bit_length()):
        yield list(points)


def _cell(value: float | None) -> str:
    return ABSENT if value is None else figure(value)
