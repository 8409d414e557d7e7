"""Sweeps as tables of text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from hostmemory import way
from sweep import SIZE
from table import Table
from words import ABSENT, figure, size_words

#: Sizes from which on a rate says more than a time.
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
    """The kinds of host memory among the ways of a sweep; one empty word if there are none."""
    return list(dict.fromkeys(name.partition(", ")[2] for name in sweep["median"]))


def _of(columns: Columns, kind: str) -> Columns:
    """The columns of one kind, by their names without it."""
    return {
        name.partition(", ")[0]: column
        for name, column in columns.items()
        if name.partition(", ")[2] == kind
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
    """A row for each size: the least of each ratio over all alignments, and what was fastest."""
    sizes = sweep["by"][SIZE]
    rows = []
    for size in dict.fromkeys(sizes):
        points = [row for row, one in enumerate(sizes) if one == size]
        least = (
            min((ratio[row] for row in points if ratio[row] is not None), default=None)
            for ratio in sweep["ratios"].values()
        )
        times = (sweep["median"][way][points[0]] for way in sweep["median"])
        rows.append([size_words(size), str(len(points)), *map(_cell, (*times, *least))])
    ways = [f"{way}, us" for way in sweep["median"]]
    ratios = [f"{ratio}, at worst" for ratio in sweep["ratios"]]
    title = f"{sweep['module']}: {sweep['operation']} (medians; times aligned)"
    return Table(title, [SIZE, "alignments", *ways, *ratios], rows)


def _cell(value: float | None) -> str:
    return ABSENT if value is None else figure(value)
