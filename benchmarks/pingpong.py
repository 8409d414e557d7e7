"""From the CPU to the GPU and back: flags sent in several ways, answered by a resident kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gdrpy
import gpukernels
import native
from gdrpy import Flag, cuda
from gdrpy.cli.measure.pingpong import play, responder
from gdrpy.cli.measure.timing import clock, undisturbed
from harness import Session

MODULE = "pingpong"
OPERATION = "CPU to GPU and back"

FASTEST = "flag through the mapping, reply in page-locked memory"
IN_C = f"{FASTEST}, in C"
PINNED = "both in page-locked memory"
MAPPED = "both through the mapping"
BACKWARDS = "flag in page-locked memory, reply through the mapping"
COPIED = "flag sent by cuMemcpyHtoDAsync, reply in page-locked memory"

_TURNS, _EXCHANGES, _WARM_UP = 10, 10_000, 200
_QUICK_TURNS, _QUICK_EXCHANGES, _QUICK_WARM_UP = 2, 15, 2

Play = Callable[[Flag, Flag, int], list[int]]


@dataclass(frozen=True)
class Way:
    """One way to play: its flags, and its player."""

    ping: Flag
    reply: Flag
    method: str
    play: Play = play


def run(session: Session) -> None:
    """Measure ping-pongs into the session."""
    turns, exchanges, warm_up = (
        (_QUICK_TURNS, _QUICK_EXCHANGES, _QUICK_WARM_UP)
        if session.quick or cuda.simulated()
        else (_TURNS, _EXCHANGES, _WARM_UP)
    )
    with gdrpy.alloc(4096) as region, gdrpy.page_locked(4096) as memory, _copying(memory) as copied:
        mapped, pinned = region.cpu, memory
        flags = "Flag.set, Flag.wait"
        ways = {
            FASTEST: Way(mapped.flag(0), pinned.flag(0), flags),
            **_in_c(session, mapped.flag(0), pinned.flag(0)),
            PINNED: Way(pinned.flag(64), pinned.flag(0), flags),
            MAPPED: Way(mapped.flag(0), mapped.flag(64), flags),
            BACKWARDS: Way(pinned.flag(64), mapped.flag(64), flags),
            COPIED: Way(
                mapped.flag(0),
                pinned.flag(0),
                "cuda.bindings' cuMemcpyHtoDAsync from page-locked memory, Flag.wait",
                copied,
            ),
        }
        samples: dict[str, list[int]] = {name: [] for name in ways}
        kinds = set()
        for turn in range(turns):
            for name, way in ways.items():
                session.step(f"{MODULE}: {name}, turn {turn + 1}")
                rounds = warm_up + exchanges
                with responder(way.ping, way.reply, rounds) as answering, undisturbed():
                    samples[name] += way.play(way.ping, way.reply, rounds)[warm_up:]
                kinds.add(answering.kind)
        methods = {
            name: f"{way.method}; the clock is read around each exchange; answers: "
            f"{', '.join(kinds)}"
            for name, way in ways.items()
        }
        session.keep_single_times(MODULE, OPERATION, methods, samples)  # a wrong answer raises


def _in_c(session: Session, ping: Flag, reply: Flag) -> dict[str, Way]:
    """The same as Flag.set and Flag.wait without Python, if it can be built."""
    try:
        exchange = native.built().exchange
    except native.NotBuilt as error:
        session.absent[IN_C] = str(error)
        return {}
    return {IN_C: Way(ping, reply, "the store, its fences, and a loop of loads", exchange)}


@contextmanager
def _copying(memory: gdrpy.Mapping) -> Iterator[Play]:
    """Exchanges whose flag is sent by a DMA copy in a separate stream."""
    with gpukernels.stream() as stream:
        yield _copied(memory, stream)


def _copied(memory: gdrpy.Mapping, stream: Any) -> Play:
    source = memory.address + 128
    staged = ctypes.c_uint.from_address(source)
    driver = cuda.driver()
    send = driver.cuMemcpyHtoDAsync

    def play(ping: Flag, reply: Flag, rounds: int) -> list[int]:
        ptr: Any = driver.CUdeviceptr(ping.ptr)
        wait = reply.wait
        samples = []
        for number in range(1, rounds + 1):
            begun = clock()
            staged.value = number
            send(ptr, source, 4, stream)
            answer = wait(number, 1.0)
            samples.append(clock() - begun)
            if answer != number:
                raise ValueError(f"exchange {number} was answered by {answer}")
        return samples

    return play
