"""Makes rounds of calls, and times each: a region is allocated, exported, imported with and
without its GPU view, mapped in part, and closed; then memory of cuMemAlloc is pinned,
mapped, and released, if a backend can pin; then host memory is registered and copied by
the GPU's copy engine without CUDA, if that can be used. The first round is shown
separately, as 'first': it includes the one-time work of a process (contexts, checks).

At most two regions of the size, and one such allocation or one buffer in host memory,
exist at a time. Bytes stored through each new view are read through another one, untimed.

examples:
  gdrpy apiperf
  gdrpy apiperf --size 1G --count 50
  gdrpy apiperf --backend nvrm --plot calls.svg --json > apiperf.json

exit status:
  0    measured, and the bytes were right
  1    bytes were wrong, a call failed, or the plot could not be written
  2    wrong usage, or no backend can be used here
  130  ended by Ctrl-C; what was measured until then is shown
"""

from __future__ import annotations

import argparse
import os
import secrets
from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

import gdrpy
from gdrpy import Mapping, Region, cuda
from gdrpy._core._mapping import Undo
from gdrpy.cli import options
from gdrpy.cli.data import Mismatch, expect_equal, gpu_get
from gdrpy.cli.exits import CommandError
from gdrpy.cli.measure import plot
from gdrpy.cli.measure.distribution import Scale, bars_table, format_us
from gdrpy.cli.measure.report import Report, show_absent
from gdrpy.cli.measure.timing import Samples, clock, undisturbed
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import format_size, parse_size

T = TypeVar("T")

NOTHING = "(nothing)"
#: The calls and what each is, in the order in which they are shown.
REGION_CALLS = {
    NOTHING: "a Python function that does nothing: the cost of timing",
    "alloc": "gdrpy.alloc(size), both views",
    "export": "region.export()",
    "import": "Region.from_fd(fd, size), both views",
    "close import": "its region.close()",
    "import CPU": "Region.from_fd(fd, size, gpu=False), as a process without CUDA",
    "close import CPU": "its region.close()",
    "map": "region.map() of the second half",
    "unmap": "mapping.close()",
    "close": "region.close() of what alloc made",
}
PIN_CALLS = {
    "pin": "gdr.pin() of memory by cuMemAlloc",
    "pin.map": "pin.map()",
    "pin.info": "pin.info",
    "pin unmap": "mapping.close()",
    "unpin": "pin.close()",
}
ENGINE_CALLS = {
    "engine first": 'region.write() of 64 bytes, via="engine", the first of a region',
    "engine write": "the same again",
    "engine read": 'region.readinto() of 64 bytes, via="engine"',
    "register": "gdrpy.register() of a buffer of the size",
    "engine pin": 'region.write() of it, via="engine", which pins its pages',
    "unregister": "its close()",
}
CALLS = REGION_CALLS | PIN_CALLS | ENGINE_CALLS

_TOKEN_BYTES = 16
_SMALL = 64

METHOD = (
    "us a call, each timed by itself, from Python; the cost of timing is in the figures, and is "
    f"the row {NOTHING}."
)


def add_arguments(parser: CommandParser) -> None:
    calls = (f"{name:18}{what}" for name, what in CALLS.items())
    parser.description = f"{parser.description}" + "\n".join(calls)
    options.add_gpu(parser)
    parser.option("--size", parse_size, "SIZE", "size of region and allocation", "1M")
    parser.option("--count", options.positive_number, "N", "rounds, after the first one", "200")
    plot.add_option(parser, "the distributions")


def run(args: argparse.Namespace, output: Output) -> int:
    rounds = Rounds(args.size, args.device, args.backend)
    try:
        rounds.region_round()
        report = Report(args, output, rounds.backend_used)
        absent = no_engine = None
        with report.measuring():
            absent, no_engine = _measure(rounds, args.count, output)
    except Mismatch as wrong:
        raise CommandError(str(wrong)) from wrong

    taken = {name: times for name, times in rounds.times.items() if times[1:]}
    if not taken:
        return report.broken_off(results=[])
    first = [times[0] for times in taken.values()]
    results = {name: Samples(times[1:]) for name, times in taken.items()}
    scale = Scale(results.values())
    title = f"us a call, {format_size(args.size)}, {len(results[NOTHING].values)} rounds"
    more = {"first": [format_us(ns) for ns in first]}
    output.show(bars_table(title, "call", results, scale, output.width(), more))
    if absent:
        output.line(f"pins: not measured: {absent}")
    show_absent(output, no_engine)
    return report.finish(
        METHOD,
        plot.of_distributions(
            f"Time of each call, {format_size(args.size)}", "one call", results, scale
        ),
        size=args.size,
        pins_not_measured=absent,
        engine_not_measured=no_engine,
        results=[
            {
                "call": name,
                "what": CALLS[name],
                "first_nanoseconds": before,
                "nanoseconds": one.json(),
                "histogram": scale.json(one),
            }
            for (name, one), before in zip(results.items(), first, strict=True)
        ],
    )


def _measure(rounds: Rounds, count: int, output: Output) -> list[str | None]:
    """Make the rounds, less one of regions.

    The reasons if pins cannot be made, and if the copy engine cannot be used; else None.
    """
    reasons: list[str | None] = []
    with output.progress("apiperf", 3 * count) as begin:
        for _ in range(count):
            begin("regions")
            rounds.region_round()
        for name, one_round in (("pins", rounds.pin_round), ("engine", rounds.engine_round)):
            try:
                one_round()
            except (gdrpy.BackendUnavailable, gdrpy.InvalidHandle) as error:
                reasons.append(str(error))
                continue
            reasons.append(None)
            for _ in range(count):
                begin(name)
                one_round()
    return reasons


def _nothing() -> None:
    return None


class Rounds:
    """Rounds of every call at one size; ``times`` are nanoseconds of each call, round by round.

    At most two regions of the size and one cuMemAlloc allocation exist at a time, and none after a
    round. Each round looks through every new view for bytes that another one wrote, and raises
    Mismatch. ``backend_used`` is the backend that maps, known after the first round.
    """

    def __init__(self, nbytes: int, device: int, backend: str | None) -> None:
        self.times: defaultdict[str, list[int]] = defaultdict(list)
        self._nbytes = nbytes
        self._device = device
        self._backend = backend
        self.backend_used = ""

    def _timed(self, name: str, call: Callable[..., T], *args: Any, **options: Any) -> T:
        begun = clock()
        result = call(*args, **options)
        self.times[name].append(clock() - begun)
        return result

    def region_round(self) -> None:
        """Make each of REGION_CALLS once."""
        size, backend = self._nbytes, self._backend
        with undisturbed(), Undo() as undo:
            self._timed(NOTHING, _nothing)
            region = undo.keep(
                self._timed("alloc", gdrpy.alloc, size, self._device, backend=backend)
            )
            self.backend_used = region.cpu.backend
            fd = self._timed("export", region.export)
            undo.callback(os.close, fd)
            for name, gpu in (("import", True), ("import CPU", False)):
                other = undo.keep(
                    self._timed(name, Region.from_fd, fd, size, gpu=gpu, backend=backend)
                )
                self._expect_shared(f"a region after {name}", region.cpu, other.read)
                self._timed(f"close {name}", other.close)
            half = size // 2
            mapping = undo.keep(self._timed("map", region.map, half, size - half))
            self._expect_shared("a mapping", mapping, lambda count: region.read(count, half))
            self._timed("unmap", mapping.close)
            self._timed("close", region.close)

    def pin_round(self) -> None:
        """Make each of PIN_CALLS once. Raises the error of pin() if the backend cannot pin."""
        with undisturbed(), Undo() as undo:
            with cuda.context(self._device):
                ptr = int(cuda.call("cuMemAlloc", self._nbytes))
            undo.callback(self._free, ptr)
            gdr = undo.keep(gdrpy.open(self._backend))
            pin = undo.keep(self._timed("pin", gdr.pin, ptr, self._nbytes))
            mapping = undo.keep(self._timed("pin.map", pin.map))
            self._timed("pin.info", attrgetter("info"), pin)
            self._expect_shared("a pin", mapping, lambda count: gpu_get(self._device, ptr, count))
            self._timed("pin unmap", mapping.close)
            self._timed("unpin", pin.close)

    def engine_round(self) -> None:
        """Make each of ENGINE_CALLS once. Raises BackendUnavailable if there is no engine."""
        size = min(_SMALL, self._nbytes)
        with undisturbed(), Undo() as undo:
            region = undo.keep(gdrpy.alloc(self._nbytes, self._device, backend=self._backend))
            for name in ("engine first", "engine write"):
                token = secrets.token_bytes(size)
                self._timed(name, region.write, token, 0, "engine")
                expect_equal(f"after {name}", token, region.cpu.read(size))
            small = bytearray(size)
            self._timed("engine read", region.readinto, small, 0, "engine")
            expect_equal("after engine read", token, small)
            buffer = secrets.token_bytes(self._nbytes)
            registration = undo.keep(self._timed("register", gdrpy.register, buffer))
            self._timed("engine pin", region.write, buffer, 0, "engine")
            expect_equal("after engine pin", buffer, region.read(self._nbytes))
            self._timed("unregister", registration.close)

    def _free(self, ptr: int) -> None:
        with cuda.context(self._device):
            cuda.call("cuMemFree", ptr)

    def _expect_shared(self, what: str, mapping: Mapping, read: Callable[[int], Any]) -> None:
        """Raise Mismatch unless bytes stored through a mapping are read on another path."""
        token = secrets.token_bytes(min(_TOKEN_BYTES, mapping.nbytes))
        mapping.write(token)
        expect_equal(f"through {what}", token, read(len(token)))
