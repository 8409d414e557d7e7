"""A result as tables of text: what run.py prints and report.py writes as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attach import MODULE as ATTACH
from broker import MODULE as BROKER
from latency import EMPTY_CALL
from sweep_tables import sweep_tables
from table import Table
from words import ABSENT, figure, size_words

#: Modules whose measurements are of no size, each of something else.
_WITHOUT_SIZES = (ATTACH, BROKER)


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Every table of a result, the goals last."""
    shown = [one for one in result["measurements"] if _worth_a_column(one)]
    topics = dict.fromkeys((one["module"], one["operation"]) for one in shown)
    for module, operation in topics:
        if module not in _WITHOUT_SIZES:
            yield _by_size(
                [one for one in shown if (one["module"], one["operation"]) == (module, operation)]
            )
    for module in _WITHOUT_SIZES:
        once = [one for one in shown if one["module"] == module]
        if once:
            yield _with_spread(once)
    for sweep in result.get("sweeps", ()):
        yield from sweep_tables(sweep)
    yield _goals([one for one in result["goals"] if _concerns(one, result["modules"])])


def wrong_data(result: dict[str, Any]) -> list[str]:
    """The measurements whose bytes did not arrive."""
    return [
        *(one["id"] for one in result["measurements"] if one["verified"] is False),
        *(f"{one['id']}/{where}" for one in result.get("sweeps", ()) for where in one["wrong"]),
    ]


def _concerns(goal: dict[str, Any], modules: list[str]) -> bool:
    """Whether a goal is of what was run, and of such a GPU."""
    return goal["source"].split("/")[0] in modules and not goal["verdict"].startswith("not appl")


def _worth_a_column(one: dict[str, Any]) -> bool:
    return EMPTY_CALL not in one["way"]


def _by_size(measurements: list[dict[str, Any]]) -> Table:
    """Medians, a row for each size and a column for each way."""
    first = measurements[0]
    ways = list(dict.fromkeys(one["way"] for one in measurements))
    sizes = list(dict.fromkeys(one["nbytes"] for one in measurements))
    medians = {(one["nbytes"], one["way"]): _median(one) for one in measurements}
    return Table(
        f"{first['module']}: {first['operation']}, {first['unit']} (median)",
        ["size", *ways],
        [
            [size_words(nbytes), *(medians.get((nbytes, way), ABSENT) for way in ways)]
            for nbytes in sizes
        ],
    )


def _with_spread(measurements: list[dict[str, Any]]) -> Table:
    """A row for each measurement, with its spread."""
    return Table(
        measurements[0]["module"],
        ["what", "way", "unit", "median", "min", "p99", "samples"],
        [
            [
                one["operation"],
                one["way"],
                one["unit"],
                _median(one),
                figure(one["min"]),
                ABSENT if one["p99"] is None else figure(one["p99"]),
                str(one["count"]),
            ]
            for one in measurements
        ],
    )


def _goals(goals: list[dict[str, Any]]) -> Table:
    return Table(
        "goals (medians)",
        ["goal", "bound", "measured", "verdict"],
        [
            [
                one["goal"],
                f"{one['relation']} {one['bound']:g} {one['unit']}",
                ABSENT if one["figure"] is None else f"{figure(one['figure'])} {one['unit']}",
                one["verdict"],
            ]
            for one in goals
        ],
    )


def _median(one: dict[str, Any]) -> str:
    wrong = " WRONG DATA" if one["verified"] is False else ""
    return figure(one["median"]) + wrong
