"""The page about performance, made of a result, its plots, and notes on missed goals."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attach
import broker
import channel
import engine
import latency
import libgdrapi
import pingpong
import queued
import scatter
import threads
import transfers
from gdrpy.cli.sizes import approximate_size
from gdrpy.copies.limits import NEVER
from goals import MISSED
from plots import plot_path
from publishing import NotPublishable, as_markdown, check, origin
from table import Table
from tables import GOALS_TITLE, measured, tables
from words import with_unit

Result = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """A chapter: its words, its module and its plots."""

    title: str
    module: str
    words: str
    plots: Sequence[str] = ()


SECTIONS = (
    Section(
        "Small copies and single words",
        latency.MODULE,
        "One call from Python, beside the same copy called in C and beside other libraries. What "
        "Python takes more than C is taken round by round. `mapping.write` is given a `bytes` "
        "object, or the array that the other libraries are given.",
    ),
    Section(
        "Transfers of every size",
        transfers.MODULE,
        "`region.write`, `region.readinto` and `region.read` as they choose (automatic), forced by "
        "`via=` to the mapping and to DMA, and everybody else on the same bytes. *Pageable* is "
        "ordinary memory, *pinned* page-locked memory, *new* an object made by the call. "
        "`automatic over better way` is the time of the choice over that of the better way, "
        "1 where they are level; `automatic over itself` is the same of two that do the same: what "
        "it is off 1 is noise. `best rival over automatic` is how many times faster gdrpy is than "
        "the best of the other libraries. Reads by plain loads end at 64 KiB, and those through "
        "the mapping at 64 MiB: above, DMA is faster by far.",
        ("latency", "bandwidth", "choice"),
    ),
    Section(
        "The copy engine",
        engine.MODULE,
        "In C, on the mapping: the engine against `memcpy` and against each of its routines alone, "
        "at every alignment that was tried; 1 is level, more is faster. A row is of all sizes up "
        "to the next row's: of each ratio the median, and the least. The times are of the size "
        "itself, aligned. `engine over itself` is of two that do the same: what it is off 1 is "
        "noise, and no other ratio is truer.",
        ("engine",),
    ),
    Section(
        "Threads",
        threads.MODULE,
        "One copy shared by threads of the engine's pool, in C.",
        ("threads",),
    ),
    Section("Many small records", scatter.MODULE, "10,000 records of 64 bytes to places all over."),
    Section(
        "Signals to the GPU and back",
        pingpong.MODULE,
        "From before `Flag.set` until `Flag.wait` has seen the answer of a kernel that runs all "
        "the time, both called from Python.",
        ("pingpong",),
    ),
    Section(
        "Starting work",
        queued.MODULE,
        "From the CPU's act until it sees the work's result in page-locked memory: work that was "
        "queued behind `flag.stream_wait` and is started by `flag.set`, and work that is launched "
        "at that moment.",
    ),
    Section(
        "A channel",
        channel.MODULE,
        "`gdrpy.Channel`: from the first push until the kernel has taken the last record. The "
        "kernel holds every word of every record against what it must be.",
    ),
    Section(
        "Getting at memory",
        attach.MODULE,
        "From a descriptor to the first store, in fresh processes and in this one.",
    ),
    Section(
        "libgdrapi, from C",
        libgdrapi.MODULE,
        "Each call alone, in fresh processes that have a CUDA context: 64 KiB of buffers of 2 MiB. "
        "Its copies beside the engine's routines on the same mapping; a row is of all sizes up to "
        "the next row's.",
    ),
    Section("The broker", broker.MODULE, "Named regions; see [the broker](broker.md#measured)."),
)

_INTRODUCTION = """# Performance

What gdrpy does on a real GPU, beside the other ways to do the same. This page is made by
`{command}`
from [the data]({data}), and by hand only where it says why a goal was missed."""

_METHOD = """## Method

Ways that are compared take turns, in an order drawn by lot for each round, so that drift hits
all of them; ratios and differences are taken round by round, and their median is given. Nothing
that was measured is left out. Host memory is warm: the same in every call, and in the CPU's caches
as far as it fits. Figures from Python include the loop and the call. What is copied is verified
before and after it is timed (large copies only afterwards), by the driver's own copies.

The rivals work on the same bytes of the same region, as their documentation shows. A DMA copy has
arrived when its call returns, but for `cuMemcpyHtoD` and cupy's `set` from pageable memory, which
CUDA lets return when the bytes are staged. A store through the mapping has left the CPU, fenced,
and is on the bus: how long it takes until the GPU has seen it and answered is under *signals to the
GPU and back*.

*At worst* is the worst of many points, and has the noise of all of them: where `itself` stands
beside it, that is the worst ratio of one way to the same way once more. A bound of 0.952 is 1/1.05:
no slower, but for 5 %. More is in [benchmarks/README.md]({readme}); `make bench` measures the same
on another machine."""


def page(result: Result, path: Path, target: Path) -> str:
    """The page at ``target`` that shows the result at ``path``. Raises NotPublishable."""
    check(result)
    return "\n\n".join(_parts(result, path, target)) + "\n"


def _parts(result: Result, path: Path, target: Path) -> Iterator[str]:
    data = _link(path, target)
    command = f"python benchmarks/report.py {_from_top(path)} --page {_from_top(target)}"
    yield _INTRODUCTION.format(command=command, data=data)
    yield origin(result)
    made = list(tables(result))
    goals = [one for one in made if one.title == GOALS_TITLE]
    yield from _goals(result, goals, notes(path))
    yield _choice(result["header"])
    yield _METHOD.format(readme=_link(Path(__file__).with_name("README.md"), target))
    for section in SECTIONS:
        found = [one for one in made if one.title.partition(":")[0] == section.module]
        if found:
            yield from _section(section, found, path, target)
    for one in result["absent"]:
        yield f"Not measured: {one['what']} ({one['reason']})."


def _choice(header: dict[str, Any]) -> str:
    """The limits by which copies chose their ways."""
    measured_here = header["limits_measured"]
    source = (
        "`gdrpy tune` had measured them on this machine" if measured_here else "they are built in"
    )
    sizes = {
        name: "never" if size == NEVER else f"from {approximate_size(size)} on"
        for name, size in header["limits"].items()
        if name not in ("threads_to", "threads_from", "lanes")
    }
    return (
        f"Copies took their ways by these limits, as {source}: stores by "
        f"{header['limits']['threads_to']} threads {sizes['write_threads']}; DMA from pageable "
        f"memory, by up to {header['limits']['lanes']} threads, {sizes['write_dma']}, and from "
        f"page-locked memory {sizes['write_dma_pinned']}; DMA instead of loads "
        f"{sizes['read_dma']}. See [transfers](transfers.md)."
    )


def _section(section: Section, found: list[Table], path: Path, target: Path) -> Iterator[str]:
    yield f"## {section.title}"
    yield section.words
    for name in section.plots:
        yield f"![{section.title}: {name}]({_link(plot_path(path, name), target)})"
    for table in found:
        yield as_markdown(table)


def _goals(result: Result, found: list[Table], noted: dict[str, str]) -> Iterator[str]:
    if found:
        yield "## Goals"
    for table in found:
        yield as_markdown(table)
    missed = [one for one in result["goals"] if one["verdict"] == MISSED]
    unknown = noted.keys() - {one["goal"] for one in missed}
    if unknown:
        raise NotPublishable(f"there are notes on what is no missed goal: {', '.join(unknown)}")
    if missed:
        yield "Missed:"
        yield "\n".join(_shortfall(one, noted.get(one["goal"])) for one in missed)


def _shortfall(goal: dict[str, Any], note: str | None) -> str:
    """The distance from a missed goal, and the note on it."""
    figure, bound = goal["figure"], goal["bound"]
    should = with_unit(f"{goal['relation']} {bound:g}", goal["unit"])
    by = ""
    if bound:
        off = abs(figure - bound) / bound
        by = f", {off:.1%} off" if off < 1 else f": {figure / bound:.1f} times that"
    words = f"- **{goal['goal']}** is {measured(goal)}, and should be {should}{by}."
    return f"{words} {note}" if note else words


def notes(path: Path) -> dict[str, str]:
    """Why goals were missed, by their words: the chapters of ``<result>-notes.md``."""
    file = path.with_name(f"{path.stem}-notes.md")
    if not file.exists():
        return {}
    _, *chapters = file.read_text().split("\n## ")
    parted = (one.partition("\n") for one in chapters)
    return {goal.strip(): " ".join(text.split()) for goal, _, text in parted}


def _link(file: Path, target: Path) -> str:
    return os.path.relpath(file.resolve(), target.resolve().parent)


def _from_top(file: Path) -> str:
    return os.path.relpath(file.resolve(), Path(__file__).resolve().parent.parent)
