"""The goals for gdrpy's speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import attach
import broker
import channel
import copyengine
import copyengine_kills
import engine
import inbox
import latency
import libgdrapi
import link
import pingpong
import rivalrings
import scatter
import stepinputs
import threads
import transfers
from harness import identifier
from rivals import BINDINGS
from sweep import figure_id, rate_name
from words import PAGEABLE, PINNED, size_words, way


@dataclass(frozen=True)
class Goal:
    """A bound for the median of the measurement ``source``, or for the figure of that id.

    With ``relative_to``, ids of rivals, the figure is how many times it goes into the least of
    theirs. ``control`` is the same figure of two equal ways, measured in the same way.
    """

    words: str
    source: str
    bound: float
    unit: str
    at_least: bool = False
    relative_to: tuple[str, ...] = ()
    control: str | None = None
    #: Whether it concerns software only: such a goal holds on the simulated GPU, not on a real one.
    simulated: bool = False

    def check(self, medians: Mapping[str, float]) -> float | None:
        """The figure to compare with the bound; None if it was not measured."""
        figure = medians.get(self.source)
        if figure is None or not self.relative_to:
            return figure
        rivals = [medians[one] for one in self.relative_to if one in medians]
        return min(rivals) / figure if rivals else None

    def kept(self, figure: float) -> bool:
        """Whether a figure is good enough."""
        return figure >= self.bound if self.at_least else figure <= self.bound


def _latency(operation: str, nbytes: int, way: str) -> str:
    return identifier(latency.MODULE, operation, nbytes, way)


def _broker(operation: str, way: str) -> str:
    return identifier(broker.MODULE, operation, None, way)


def _pingpong(way: str) -> str:
    return identifier(pingpong.MODULE, pingpong.OPERATION, None, way)


def _libgdrapi(operation: str, name: str) -> str:
    return figure_id(libgdrapi.MODULE, operation, name)


def _to(name: str) -> str:
    return figure_id(engine.MODULE, engine.TO, name)


def _from(name: str) -> str:
    return figure_id(engine.MODULE, engine.FROM, name)


#: The tolerance of "no slower": the precision of medians.
_LEVEL = round(1 / 1.05, 3)


def _transfers(operation: str) -> tuple[Goal, ...]:
    """The goals of region.write or region.read."""
    call = f"region.{operation}, 4 B to 1 GiB"

    def source(name: str) -> str:
        return figure_id(transfers.MODULE, operation, name)

    return (
        Goal(
            f"{call}: longest time, relative to the better way",
            source(transfers.WORST),
            1.05,
            "x",
            control=source(transfers.WORST_ITSELF),
        ),
        Goal(
            f"{call}: slowest case up to 64 KiB, relative to the best rival",
            source(transfers.WORST_RIVAL_SMALL),
            1,
            "x",
            at_least=True,
        ),
        Goal(
            f"{call}: slowest case above 64 KiB, relative to the best rival",
            source(transfers.WORST_RIVAL_LARGE),
            _LEVEL,
            "x",
            at_least=True,
        ),
    )


def _copyengine(operation: str, name: str) -> str:
    return figure_id(copyengine.MODULE, operation, name)


def _engine_reads() -> Iterator[Goal]:
    """The goals of small reads by the GPU's copy engine."""
    for nbytes, bound in zip(copyengine.SMALL, (4.2, 6), strict=True):
        call = f"copy engine, read {size_words(nbytes)} into registered memory"
        yield Goal(call, _copyengine(copyengine.READ, copyengine.time_name(nbytes)), bound, "us")
        yield Goal(
            f"{call}: times faster than cuMemcpyDtoH",
            _copyengine(copyengine.READ, copyengine.ratio_name(nbytes)),
            round(1 / 0.7, 3),
            "x",
            at_least=True,
        )


def _engine_rates(operation: str) -> tuple[Goal, ...]:
    """The goals of large copies by the GPU's copy engine."""
    registered = f"copy engine, {operation}, registered, from {size_words(copyengine.LARGE)} on"
    ordinary = f"copy engine, {operation}, ordinary memory, {size_words(copyengine.FROM_ORDINARY)}"
    rate = rate_name(copyengine.FROM_ORDINARY, way(copyengine.ENGINE, PAGEABLE))
    ratio = copyengine.ratio_name(copyengine.FROM_ORDINARY)
    return (
        Goal(
            registered,
            _copyengine(operation, copyengine.LEAST_RATE),
            53,
            "GB/s",
            at_least=True,
        ),
        Goal(
            f"{registered}: slowest case, relative to CUDA",
            _copyengine(operation, copyengine.LEAST_RATIO),
            1,
            "x",
            at_least=True,
            control=_copyengine(operation, copyengine.WORST_ITSELF),
        ),
        Goal(ordinary, _copyengine(operation, rate), 38, "GB/s", at_least=True),
        Goal(
            f"{ordinary}: times faster than CUDA",
            _copyengine(operation, ratio),
            2.5,
            "x",
            at_least=True,
        ),
    )


GOALS = (
    Goal(
        "flag.set: time that Python adds to a store and fence in C",
        _latency("store a word", 4, f"{latency.FLAG_SET} - {latency.C_ROUTINE}"),
        0.06,
        "us",
    ),
    Goal(
        "write 64 B: time that Python adds to the C routine",
        _latency("write", 64, f"{latency.WRITE} - {latency.C_ROUTINE}"),
        0.08,
        "us",
    ),
    Goal(
        "write 4 KiB: speed from Python, relative to the C routine",
        _latency("write", 4096, latency.WRITE),
        _LEVEL,
        "x",
        at_least=True,
        relative_to=(_latency("write", 4096, latency.C_ROUTINE),),
    ),
    Goal(
        "write 64 B: times faster than cuMemcpyHtoD",
        _latency("write", 64, latency.WRITE),
        20,
        "x",
        at_least=True,
        relative_to=tuple(
            _latency("write", 64, way(BINDINGS, kind)) for kind in (PAGEABLE, PINNED)
        ),
    ),
    Goal(
        "read 64 B: time that Python adds to the C routine",
        _latency("read", 64, f"{latency.READ} - {latency.C_ROUTINE}"),
        0.15,
        "us",
    ),
    Goal(
        "engine to the mapping: slowest case, relative to the best routine",
        _to(engine.worst()),
        0.95,
        "x",
        at_least=True,
        control=_to(engine.worst_itself()),
    ),
    Goal(
        "engine from the mapping: slowest case, relative to the best routine",
        _from(engine.worst()),
        0.95,
        "x",
        at_least=True,
        control=_from(engine.worst_itself()),
    ),
    Goal(
        "engine to the mapping: slowest case, relative to memcpy",
        _to(engine.worst_memcpy()),
        1,
        "x",
        at_least=True,
        control=_to(engine.worst_itself()),
    ),
    Goal(
        "engine from the mapping: slowest case from 1 KiB on, relative to memcpy",
        _from(engine.worst_memcpy_large()),
        10,
        "x",
        at_least=True,
    ),
    *(
        Goal(
            f"{operation}, {rate_name(*rate)}",
            figure_id(threads.MODULE, operation, rate_name(*rate)),
            bound,
            "GB/s",
            at_least=True,
        )
        for operation, bounds in ((threads.TO, (20, 32)), (threads.FROM, (1, 6)))
        for rate, bound in zip(threads.RATES[operation], bounds, strict=True)
    ),
    *_transfers(transfers.WRITE),
    *_transfers(transfers.READ),
    *_engine_reads(),
    *_engine_rates(copyengine.WRITE),
    *_engine_rates(copyengine.READ),
    Goal(
        f"copy engine: {copyengine.FRESH}",
        identifier(copyengine.MODULE, copyengine.FRESH, None, copyengine.WARM),
        10,
        "ms",
    ),
    Goal("copy engine: GPU memory of a process", copyengine.MEMORY, 4, "MiB"),
    *(
        Goal(
            f"copy engine: {copyengine.NEIGHBOURS}, {name}",
            copyengine.neighbour_id(name),
            100,
            "us",
        )
        for name in (copyengine.BESIDE_WRITE, copyengine.BESIDE_READ)
    ),
    Goal(f"copy engine: wrong copies of {copyengine.MANY}", copyengine.WRONG, 0, ""),
    Goal(
        "copy engine: processes killed amid copies",
        copyengine_kills.KILLS,
        1000,
        "",
        at_least=True,
    ),
    Goal("copy engine: of these, with wrong bytes", copyengine_kills.WRONG, 0, ""),
    Goal(
        "copy engine: longest time until a killed process's GPU memory is back",
        copyengine_kills.LONGEST,
        1,
        "s",
    ),
    Goal("copy engine: GPU memory less after the kills", copyengine_kills.LEFT, 0, "B"),
    Goal("copy engine: descriptors more after the kills", copyengine_kills.DESCRIPTORS, 0, ""),
    *(
        Goal(
            f"{way}, 10,000 records of 64 B: times faster than a Python loop over write",
            identifier(scatter.MODULE, scatter.OPERATION, None, way),
            10,
            "x",
            at_least=True,
            relative_to=(identifier(scatter.MODULE, scatter.OPERATION, None, scatter.LOOP),),
        )
        for way in (scatter.WRITE_MANY, scatter.SCATTER)
    ),
    Goal("ping-pong: flag through the mapping", _pingpong(pingpong.FASTEST), 1.7, "us"),
    Goal(
        "ping-pong: flag through the mapping, relative to page-locked memory alone",
        _pingpong(pingpong.FASTEST),
        1,
        "x",
        at_least=True,
        relative_to=(_pingpong(pingpong.PINNED),),
    ),
    Goal(
        "channel: 64 B records a second from one Python thread, one by one",
        identifier(channel.MODULE, channel.OPERATION, None, channel.way(1)),
        1,
        channel.UNIT,
        at_least=True,
    ),
    Goal(
        "channel: 64 B records a second from one Python thread, by batches of 256",
        identifier(channel.MODULE, channel.OPERATION, None, channel.way(256)),
        3,
        channel.UNIT,
        at_least=True,
    ),
    Goal("channel: millions of records verified", channel.VERIFIED, 100, "M", at_least=True),
    Goal("channel: records lost or torn", channel.LOST, 0, ""),
    *(
        Goal(
            f"inbox: 64 B records a second, one reader, {way}",
            identifier(inbox.MODULE, inbox.OPERATION, None, way),
            bound,
            inbox.UNIT,
            at_least=True,
        )
        for way, bound in ((inbox.way(1024), 10), (inbox.IN_C, 30))
    ),
    Goal("inbox: millions of records verified", inbox.VERIFIED, 1000, "M", at_least=True),
    Goal("inbox: records lost or torn, messages late", inbox.LOST, 0, ""),
    *(
        goal
        for way, bound in ((link.IN_PYTHON, 2.0), (link.IN_C, 1.7))
        for goal in (
            Goal(
                f"link: call and answer, {way}, median",
                identifier(link.MODULE, link.OPERATION, None, way),
                bound,
                "us",
            ),
            Goal(
                f"link: call and answer, {way}, p99.9",
                link.slowest_but_one_in_1000(way),
                10,
                "us",
            ),
        )
    ),
    *(
        Goal(f"inbox: {name}", f"{rivalrings.MODULE}/{name}", 1, "x", at_least=True)
        for name in (
            *(
                rivalrings.rate_name(*one)
                for one in (
                    (16, rivalrings.FIFO),
                    (16, rivalrings.HAND),
                    (64, rivalrings.HAND),
                )
            ),
            *(rivalrings.round_name(one) for one in (rivalrings.FIFO, rivalrings.HAND)),
        )
    ),
    Goal(f"inbox: {rivalrings.WRONG}", f"{rivalrings.MODULE}/{rivalrings.WRONG}", 0, ""),
    Goal("inputs of a step: time by stores, relative to copies", stepinputs.RATIO, 0.5, "x"),
    Goal(attach.FRESH, identifier(attach.MODULE, attach.FRESH, None, "gdrpy"), 1, "ms"),
    Goal(attach.FURTHER, identifier(attach.MODULE, attach.FURTHER, None, "gdrpy"), 0.1, "ms"),
    *(
        Goal(
            f"libgdrapi: {libgdrapi.FURTHER}, {kind}",
            identifier(libgdrapi.MODULE, libgdrapi.FURTHER, None, kind),
            0.15,
            "ms",
        )
        for kind in libgdrapi.KINDS
    ),
    *(
        Goal(
            f"libgdrapi {operation}: slowest case, relative to the best routine",
            _libgdrapi(operation, engine.worst(libgdrapi.MODULE)),
            0.95,
            "x",
            at_least=True,
            control=_libgdrapi(operation, engine.worst_itself(libgdrapi.MODULE)),
        )
        for operation in (engine.TO, engine.FROM)
    ),
    *(
        Goal(
            f"libgdrapi: {what} more in use after 10,000 cycles",
            _libgdrapi(libgdrapi.LEFT, what),
            bound,
            unit,
        )
        for what, bound, unit in (
            (libgdrapi.DESCRIPTORS, 0, ""),
            (libgdrapi.BAR1, 0, "B"),
            (libgdrapi.GPU_MEMORY, 0, "B"),
            (libgdrapi.RESIDENT, 1 << 20, "B"),
        )
    ),
    Goal(
        "broker: get with its CPU view, one core",
        _broker(broker.ROUND_TRIP, broker.GET),
        25,
        "us",
        simulated=True,
    ),
    Goal(
        "broker: get with its CPU view, relative to a bare server's round trip",
        _broker(broker.ROUND_TRIP, broker.GET),
        round(1 / 1.6, 3),
        "x",
        at_least=True,
        relative_to=(_broker(broker.ROUND_TRIP, broker.BARE),),
        simulated=True,
    ),
    Goal(
        "broker: a bare server's requests a second, relative to the broker's, 16 clients",
        _broker(broker.THROUGHPUT, broker.BROKER),
        round(1 / 0.6, 3),
        "x",
        relative_to=(_broker(broker.THROUGHPUT, broker.BARE),),
        simulated=True,
    ),
    Goal(
        "broker: time that the first get and load add to a bare Python's start",
        _broker(broker.COLD, f"{broker.CONNECT_AND_GET} - {broker.BARE_PYTHON}"),
        30,
        "ms",
        simulated=True,
    ),
    Goal(
        "broker: 1,000 regions from one get_many",
        _broker(broker.MANY, "gdrpy"),
        20,
        "ms",
        simulated=True,
    ),
    *(
        Goal(
            f"broker: 4,000 regions listed by {way}, with its start",
            _broker(broker.LISTING, way),
            500,
            "ms",
            simulated=True,
        )
        for way in (broker.LS, broker.LS_JSON)
    ),
    Goal(
        "broker: first get of a process, with its CPU view",
        _broker(broker.FIRST, "gdrpy"),
        1,
        "ms",
    ),
    Goal(
        "broker: get with its CPU view, on a GPU", _broker(broker.ROUND_TRIP, broker.GET), 150, "us"
    ),
    Goal(
        "broker: time that allocate adds to cuMemCreate and export",
        _broker(broker.ALLOCATE, f"{broker.BROKER} - {broker.CREATE_AND_EXPORT}"),
        40,
        "us",
    ),
)


#: The words of each goal by what it compares. Results of earlier commits may word it otherwise.
_WORDS = {(goal.source, goal.relative_to, goal.bound): goal.words for goal in GOALS}


def goal_words(goal: Mapping[str, Any]) -> str:
    """The words for a goal in a result: today's, or the result's own if the goal has changed."""
    key = (goal["source"], tuple(goal["relative_to"]), goal["bound"])
    return _WORDS.get(key, goal["goal"])
