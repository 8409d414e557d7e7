"""A result as tables of text, which run.py prints and report.py writes as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from latency import EMPTY_CALL
from promises import goal_words
from sweep_tables import sweep_tables
from table import Table
from words import ABSENT, figure, size_words, with_unit

GOALS_TITLE = "goals (medians)"


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Every table of a result, the goals last."""
    shown = [one for one in result["measurements"] if _worth_a_column(one)]
    for module in dict.fromkeys(one["module"] for one in shown):
        found = [one for one in shown if one["module"] == module]
        if all(one["nbytes"] is None for one in found):
            yield _with_spread(found)
            continue
        for operation in dict.fromkeys(one["operation"] for one in found):
            yield _by_size([one for one in found if one["operation"] == operation])
    for sweep in result.get("sweeps", ()):
        yield from sweep_tables(sweep)
    for _, found in groupby(result.get("distributions", ()), itemgetter("module", "operation")):
        yield _distributions(list(found))
    if result.get("checks"):
        yield _checks(result["checks"])
    goals = [one for one in result["goals"] if _concerns(one, result["modules"])]
    if goals:
        yield _goals(goals)


def wrong_data(result: dict[str, Any]) -> list[str]:
    """The measurements whose bytes did not arrive."""
    return [
        *(one["id"] for one in result["measurements"] if one["verified"] is False),
        *(f"{one['id']}/{where}" for one in result.get("sweeps", ()) for where in one["wrong"]),
    ]


def _concerns(goal: dict[str, Any], modules: list[str]) -> bool:
    """Whether a goal applies to the modules of the run, and to its GPU."""
    return goal["source"].split("/")[0] in modules and not goal["verdict"].startswith("not appl")


def _worth_a_column(one: dict[str, Any]) -> bool:
    return EMPTY_CALL not in one["way"]


def _by_size(measurements: list[dict[str, Any]]) -> Table:
    """Medians, a row for each way and a column for each size."""
    first = measurements[0]
    ways = list(dict.fromkeys(one["way"] for one in measurements))
    sizes = list(dict.fromkeys(one["nbytes"] for one in measurements))
    medians = {(one["nbytes"], one["way"]): _median(one) for one in measurements}
    return Table(
        f"{first['module']}: {first['operation']}, {first['unit']} (median)",
        ["way", *map(size_words, sizes)],
        [[way, *(medians.get((nbytes, way), ABSENT) for nbytes in sizes)] for way in ways],
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


def _distributions(distributions: list[dict[str, Any]]) -> Table:
    """A row for each way, with how its single times are distributed."""
    first = distributions[0]
    columns = ("minimum", "median", "p90", "p99", "p99.9", "maximum")
    return Table(
        f"{first['module']}: {first['operation']}, {first['unit']}",
        ["way", *columns, "count"],
        [
            [one["way"], *(figure(one[name]) for name in columns), str(one["count"])]
            for one in distributions
        ],
    )


def _checks(checks: list[dict[str, Any]]) -> Table:
    return Table(
        "checks",
        ["what must be so", "found", "verdict"],
        [[one["what"], one["found"], "passed" if one["passed"] else "FAILED"] for one in checks],
    )


def _goals(goals: list[dict[str, Any]]) -> Table:
    return Table(
        GOALS_TITLE,
        ["goal", "bound", "measured", "verdict"],
        [
            [
                goal_words(one),
                with_unit(f"{one['relation']} {one['bound']:,.10g}", one["unit"]),
                ABSENT if one["figure"] is None else measured(one),
                one["verdict"],
            ]
            for one in goals
        ],
    )


def measured(goal: dict[str, Any]) -> str:
    """The figure of a goal, its point, and its control, the noise."""
    words, control = with_unit(figure(goal["figure"]), goal["unit"]), goal.get("control")
    if where := goal.get("where"):
        words += f" ({where})"
    return words + (f"; itself {figure(control)}" if control else "")


def _median(one: dict[str, Any]) -> str:
    wrong = " WRONG DATA" if one["verified"] is False else ""
    return figure(one["median"]) + wrong
