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
import copyengine
import engine
import inbox
import latency
import libgdrapi
import link
import pingpong
import queued
import rivalrings
import scatter
import stepinputs
import threads
import transfers
from gdrpy.cli.sizes import approximate_size
from gdrpy.copies.tuning import NEVER
from goals import MISSED
from plots import plot_path
from promises import goal_words
from publishing import NotPublishable, as_markdown, check, origin
from summary import summary
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
        "One call from Python, beside the same copy from C and from other libraries. "
        "`mapping.write` takes a `bytes` object, or the array that the other libraries take. The "
        "last row is the time that Python adds to C, taken round by round.",
    ),
    Section(
        "Transfers of every size",
        transfers.MODULE,
        "`region.write`, `region.readinto` and `region.read` choose a way by themselves "
        "(*automatic*), or take the mapping, CUDA's DMA or the [copy engine](copy-engine.md) "
        "(*engine*) by `via=`. The other libraries copy the same bytes. *Pageable* is ordinary "
        "memory, *pinned* is page-locked memory, *registered* is memory of `gdrpy.register`, "
        "*new* is an object that the call makes.\n\n"
        "- `automatic over better way`: time of the chosen way, relative to the best of those.\n"
        "- `best rival over automatic`: how many times faster gdrpy is than the best library.\n"
        "- `automatic over itself`: the same way measured twice. Its distance from 1 is the "
        "measurement noise.\n\n"
        "Reads by plain loads end at 64 KiB and reads through the mapping at 64 MiB. DMA is far "
        "faster above these sizes.",
        ("bandwidth", "choice"),
    ),
    Section(
        "The copy routines",
        engine.MODULE,
        "Copies by the CPU in C, on the mapping: the routine that gdrpy chooses (*engine*), beside "
        "`memcpy` and each routine alone. "
        "A row covers all sizes up to the next row's, at every alignment that was tried. Ratios "
        "are medians, with the least in brackets; above 1 the engine is faster. Times are those "
        "of the row's own size, aligned. `engine over itself` measures the engine twice. Its "
        "distance from 1 is the measurement noise, which is in every other ratio too.",
        ("engine",),
    ),
    Section(
        "Threads",
        threads.MODULE,
        "One copy in C, divided among threads of the engine's pool.",
        ("threads",),
    ),
    Section(
        "The GPU's copy engine",
        copyengine.MODULE,
        'The [copy engine without CUDA](copy-engine.md), by `via="engine"`, beside CUDA\'s own '
        "copies of the same bytes. *Pinned* is registered memory for the engine and page-locked "
        "memory for CUDA. Fresh processes are timed inside, after the interpreter's start; "
        "`files not cached` means that gdrpy's files come from the disk. Single reads of 64 B are "
        "timed while another process copies as much as it can.",
    ),
    Section(
        "Many small records", scatter.MODULE, "10,000 records of 64 bytes to scattered places."
    ),
    Section(
        "Signals to the GPU and back",
        pingpong.MODULE,
        "Time from the call of `Flag.set` until `Flag.wait` returns with the answer of a resident "
        "kernel. Python makes both calls.",
        ("pingpong",),
    ),
    Section(
        "Starting work",
        queued.MODULE,
        "Time from the CPU's call until the CPU sees the result in page-locked memory. The work is "
        "either queued behind `flag.stream_wait` and started by `flag.set`, or launched at that "
        "moment.",
    ),
    Section(
        "A channel",
        channel.MODULE,
        "`gdrpy.Channel`, from the first push until the kernel has taken the last record. The "
        "kernel verifies every word of every record.",
    ),
    Section(
        "An inbox",
        inbox.MODULE,
        "`gdrpy.Inbox`, from the launch of the kernel until the CPU has taken the last record. "
        "Every word of every record is verified.",
    ),
    Section(
        "A link",
        link.MODULE,
        "Time of `Link.call`, from the request until the answer of a resident kernel is there.",
    ),
    Section(
        "An inbox beside other rings",
        rivalrings.MODULE,
        "Both ends in CUDA C++ and C: records from the threads of a block, and single rounds from "
        "a word that the CPU stores until it has the record of the kernel's answer. The others are "
        "the FIFO of MSCCL++ and a ring of page-locked memory written by hand.",
    ),
    Section(
        "The inputs of a step",
        stepinputs.MODULE,
        "Time from three inputs of a captured graph, in host memory, until its first kernel has "
        "read them and the CPU has its answer.",
    ),
    Section(
        "Getting at memory",
        attach.MODULE,
        "Time from a descriptor to the first store, in fresh processes and in this one.",
    ),
    Section(
        "libgdrapi, from C",
        libgdrapi.MODULE,
        "Each call alone, on 64 KiB of 2 MiB buffers, in fresh processes that have a CUDA context. "
        "Then the library's copies beside the engine's routines on the same mapping. A row covers "
        "all sizes up to the next row's.",
    ),
    Section(
        "The broker", broker.MODULE, "Named regions. See also [the broker](broker.md#measured)."
    ),
)

_INTRODUCTION = """# Performance

Small writes reach GPU memory in a fraction of a microsecond, because they are CPU stores: there is
no launch and no driver call. Large copies take threads, the GPU's copy engine or CUDA's DMA,
whichever is fastest at that size. A process that needs only the CPU view starts without CUDA."""

_PLOT = "latency"
_CAPTION = "Time of a copy by size, for gdrpy and for other libraries"

_GAINS = """## What you gain

{summary}

- **Small writes and signals**: a CPU can steer a running kernel from Python, without a launch. See
  [small copies](#small-copies-and-single-words) and [signals](#signals-to-the-gpu-and-back).
- **Large copies from ordinary memory** go through several staging threads. From page-locked memory
  every library reaches the speed of the bus, and gdrpy gains nothing. See
  [transfers](#transfers-of-every-size).
- **Reads** through the mapping take a bus round trip of about 1 us. Larger reads
  go by the copy engine or by DMA.
- **Processes that share memory** need neither a copy each nor a CUDA context each. See
  [getting at memory](#getting-at-memory)."""

_METHOD = """## Method

{origin}

- Ways that are compared take turns, in an order drawn by lot for each round, so drift affects all
  of them. Ratios and differences are taken within a round; the tables show their medians. No sample
  is left out. Calls of less than 2 ms follow one that does not count.
- Every copy is verified by the driver's own copies, before and after it is timed (large copies only
  afterwards).
- Host memory is warm: each call uses the same memory, which is in the CPU's caches as far as it
  fits.
- Figures from Python include the loop and the call.
- The rivals work on the same bytes of the same region, as their documentation shows. A DMA copy has
  arrived when its call returns. `cuMemcpyHtoD` and cupy's `set` from pageable memory are
  exceptions: CUDA lets them return when the bytes are staged.
- A store through the mapping is fenced: when the call returns, it has left the CPU and is on the
  bus. The time until a kernel sees it and answers is under [signals](#signals-to-the-gpu-and-back).

{limits}

[benchmarks/README.md]({readme}) has the whole method. `make bench` measures the same on another
machine. `{command}`
made this page from [the data]({data}). Only the reasons for missed goals are written by hand."""

_GOALS = """## Goals

The project's own goals, met or missed. They guard against regressions.

The slowest case is the worst of many points and carries the noise of all of them. *Itself* is the
slowest case of one way measured twice. A bound of 0.952 is 1/1.05: at most 5 % slower."""


def page(result: Result, path: Path, target: Path) -> str:
    """The page at ``target`` that shows the result at ``path``. Raises NotPublishable."""
    check(result)
    return "\n\n".join(_parts(result, path, target)) + "\n"


def _parts(result: Result, path: Path, target: Path) -> Iterator[str]:
    made = list(tables(result))
    found = {
        section: [one for one in made if one.title.partition(":")[0] == section.module]
        for section in SECTIONS
    }
    yield _INTRODUCTION
    yield f"![{_CAPTION}]({_link(plot_path(path, _PLOT), target)})"
    yield _GAINS.format(summary=summary(result, path, target))
    yield _METHOD.format(
        origin=origin(result),
        limits=_choice(result["header"]),
        readme=_link(Path(__file__).with_name("README.md"), target),
        command=f"python benchmarks/report.py {_from_top(path)} --page {_from_top(target)}",
        data=_link(path, target),
    )
    for section, shown in found.items():
        if shown:
            yield from _section(section, shown, path, target)
    for one in result["absent"]:
        yield f"Not measured: {one['what']} ({one['reason']})."
    goals = [one for one in made if one.title == GOALS_TITLE]
    yield from _goals(result, goals, notes(path, _link(path.parent, target)))


def _choice(header: dict[str, Any]) -> str:
    """The limits by which copies chose their ways."""
    measured_here = header["limits_measured"]
    source = (
        "which `gdrpy tune` measured on this machine" if measured_here else "which are built in"
    )
    sizes = {
        name: "never" if size == NEVER else f"from {approximate_size(size)} on"
        for name, size in header["limits"].items()
        if name not in ("threads_to", "threads_from", "lanes")
    }
    engine = (
        f" The copy engine, where it was made: from ordinary memory {sizes['write_engine']}, into "
        f"it {sizes['read_engine']}; from registered memory {sizes['write_registered']}, into it "
        f"{sizes['read_registered']}."
        if "write_engine" in sizes  # which results of earlier commits lack
        else ""
    )
    return (
        f"Copies chose their way by these limits, {source}: stores by "
        f"{header['limits']['threads_to']} threads {sizes['write_threads']}; DMA from pageable "
        f"memory, by up to {header['limits']['lanes']} threads, {sizes['write_dma']}; DMA from "
        f"page-locked memory {sizes['write_dma_pinned']}; DMA instead of loads "
        f"{sizes['read_dma']}.{engine} See [transfers](transfers.md)."
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
        yield _GOALS
    for table in found:
        yield as_markdown(table)
    missed = [one for one in result["goals"] if one["verdict"] == MISSED]
    unknown = noted.keys() - {goal_words(one) for one in missed}
    if unknown:
        raise NotPublishable(f"there are notes on goals that were not missed: {', '.join(unknown)}")
    if missed:
        yield "Missed:"
        yield "\n".join(_shortfall(one, noted.get(goal_words(one))) for one in missed)


def _shortfall(goal: dict[str, Any], note: str | None) -> str:
    """The distance from a missed goal, and the note on it."""
    figure, bound = goal["figure"], goal["bound"]
    should = with_unit(f"{goal['relation']} {bound:,.10g}", goal["unit"])
    by = ""
    if bound:
        off = abs(figure - bound) / bound
        by = f" ({off:.1%} off)" if off < 1 else f" ({figure / bound:.1f} times that)"
    words = f"- **{goal_words(goal)}** is {measured(goal)}. The bound is {should}{by}."
    return f"{words} {note}" if note else words


def notes(path: Path, folder: str) -> dict[str, str]:
    """Why goals were missed, by their words: the chapters of ``<result>-notes.md``.

    Their links name other results, which lie in ``folder`` as seen from the page.
    """
    file = path.with_name(f"{path.stem}-notes.md")
    if not file.exists():
        return {}
    _, *chapters = file.read_text().replace("](", f"]({folder}/").split("\n## ")
    parted = (one.partition("\n") for one in chapters)
    return {goal.strip(): " ".join(text.split()) for goal, _, text in parted}


def _link(file: Path, target: Path) -> str:
    return os.path.relpath(file.resolve(), target.resolve().parent)


def _from_top(file: Path) -> str:
    return os.path.relpath(file.resolve(), Path(__file__).resolve().parent.parent)
