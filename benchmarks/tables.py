"""A result as tables of text: what run.py prints and report.py writes as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attach import MODULE as ATTACH
from broker import MODULE as BROKER
from latency import EMPTY_CALL

#: Modules whose measurements are of no size, each of something else.
_WITHOUT_SIZES = (ATTACH, BROKER)

#: What stands where nothing was measured.
ABSENT = "-"


@dataclass(frozen=True)
class Table:
    """Rows of text under columns; the first column says what the row is about."""

    title: str
    columns: list[str]
    rows: list[list[str]]


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
    if result["crossovers"]:
        yield _crossovers(result["crossovers"])
    yield _goals([one for one in result["goals"] if _concerns(one, result["modules"])])


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


def _crossovers(crossovers: list[dict[str, Any]]) -> Table:
    return Table(
        "bandwidth: where the mapping stops being the faster way",
        ["copy", "mapping faster up to", "automatic / better way, at worst"],
        [
            [
                f"{one['operation']} against {one['against']}",
                size_words(one["mapping_faster_up_to"]),
                f"{one['worst_choice']:.2f} at {size_words(one['worst_choice_at'])}",
            ]
            for one in crossovers
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


def figure(value: float) -> str:
    """A figure with three digits that count."""
    for limit, digits in ((100, 0), (10, 1), (1, 2)):
        if abs(value) >= limit:
            return f"{value:.{digits}f}"
    return f"{value:.3f}"


def size_words(nbytes: int | None) -> str:
    """A size as people say it."""
    if nbytes is None:
        return ABSENT
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor and nbytes % factor == 0:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes} B"
