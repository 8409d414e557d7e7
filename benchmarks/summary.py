"""A few figures beside the best other way, for readers who have a minute."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attach
import copyengine
import latency
import pingpong
import transfers
from publishing import check
from rivals import BINDINGS, NAMES
from sweep import SIZE
from words import PAGEABLE, PINNED, figure, size_words, way

Result = dict[str, Any]

SMALL, LARGE = 64, 1 << 30
REGISTERED, ORDINARY = copyengine.SMALL[0], copyengine.FROM_ORDINARY
_SMALL = f"{latency.MODULE}/write/{SMALL}"
_LARGE = f"{transfers.MODULE}/{transfers.WRITE}/{LARGE}"
_ENGINE = f"{copyengine.MODULE}/{copyengine.READ}"
_SIGNAL = f"{pingpong.MODULE}/{pingpong.OPERATION}"


@dataclass(frozen=True)
class Comparison:
    """An act, the id of gdrpy's time for it, and other ways with the ids of their times."""

    act: str
    own: str
    others: tuple[tuple[str, str], ...]
    unit: str = "us"
    #: How many of the measured unit make one of ``unit``.
    scale: int = 1


COMPARISONS = (
    Comparison(
        f"Write {size_words(SMALL)} to GPU memory",
        f"{_SMALL}/{latency.WRITE}",
        tuple(
            (name, f"{_SMALL}/{way(name, kind)}") for name in NAMES for kind in (PAGEABLE, PINNED)
        ),
    ),
    Comparison(
        "Signal a running kernel and see its answer",
        f"{_SIGNAL}/{pingpong.FASTEST}",
        (
            ("flags in page-locked memory", f"{_SIGNAL}/{pingpong.PINNED}"),
            ("`cuMemcpyHtoDAsync`", f"{_SIGNAL}/{pingpong.COPIED}"),
        ),
    ),
    Comparison(
        f"Write {size_words(LARGE)} from ordinary memory",
        f"{_LARGE}/{way(transfers.AUTOMATIC, PAGEABLE)}",
        tuple((name, f"{_LARGE}/{way(name, PAGEABLE)}") for name in NAMES),
        "ms",
        1000,
    ),
    Comparison(
        f"Read {size_words(REGISTERED)} by the copy engine",
        f"{_ENGINE}/{REGISTERED}/{way(copyengine.ENGINE, PINNED)}",
        tuple(
            ("`cuMemcpyDtoH`", f"{_ENGINE}/{REGISTERED}/{way(BINDINGS, kind)}")
            for kind in (PAGEABLE, PINNED)
        ),
    ),
    Comparison(
        f"Read {size_words(ORDINARY)} into ordinary memory by the copy engine",
        f"{_ENGINE}/{ORDINARY}/{way(copyengine.ENGINE, PAGEABLE)}",
        (("`cuMemcpyDtoH`", f"{_ENGINE}/{ORDINARY}/{way(BINDINGS, PAGEABLE)}"),),
        "ms",
        1000,
    ),
    Comparison(
        "Open shared memory in a fresh process and write",
        f"{attach.MODULE}/{attach.FRESH}/gdrpy",
        (("with a CUDA context", f"{attach.MODULE}/{attach.FRESH_WITH_GPU}/gdrpy"),),
        "ms",
    ),
)


def summary(result: Result, path: Path, target: Path) -> str:
    """The table as Markdown, with a link from ``target`` to its data. Raises NotPublishable."""
    check(result)
    header, times = result["header"], dict(_times(result))
    data = os.path.relpath(path.resolve(), target.resolve().parent)
    lines = ["| | gdrpy | best other way | times faster |", "| --- | ---: | --- | ---: |"]
    for one in COMPARISONS:
        others = [(times[id], name) for name, id in one.others if id in times]
        if one.own in times and others:
            own, (best, name) = times[one.own], min(others)
            shown, beside = (f"{figure(time / one.scale)} {one.unit}" for time in (own, best))
            lines.append(f"| {one.act} | **{shown}** | {beside}, {name} | {figure(best / own)} |")
    return "\n".join(lines) + (
        f"\n\nMedians, called from Python {header['python']} on an {header['gpu']} with driver "
        f"{header['nvidia_driver']}, backend `{header['backend']}`: [data]({data})."
    )


def _times(result: Result) -> Iterator[tuple[str, float]]:
    """Every median of a result by its id; a point of a sweep by size has the size in it."""
    for one in (*result["measurements"], *result["distributions"]):
        yield one["id"], one["median"]
    for sweep in result["sweeps"]:
        if sweep["module"] in (transfers.MODULE, copyengine.MODULE):
            for name, medians in sweep["median"].items():
                for nbytes, median in zip(sweep["by"][SIZE], medians, strict=True):
                    if median is not None:
                        yield f"{sweep['id']}/{nbytes}/{name}", median
