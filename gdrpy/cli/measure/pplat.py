"""Measures the loop of a program in which the CPU decides and a resident kernel reacts: how long
a round takes from the CPU to the kernel and back. There is one round at a time, from
Python. The clock is read before and after each; its cost is printed, and not
subtracted. Each answer is compared with the one that its round must have. --json has
more percentiles than the table, and the histograms.

  flag  Flag.set, until Flag.wait has the kernel's answer, one store. The flag lies in
        GPU memory, where the CPU stores through the mapping, or in pinned (page-locked
        host) memory, which the kernel polls over the bus. So does the reply: the CPU
        polls pinned memory in its own cache, and GPU memory over the bus.
  push  Channel.push of a record, until Channel.drain has found that the kernel took it.
        The kernel has loaded it, fenced, and stored one counter to pinned memory.
  pop   Flag.set, by which the kernel is asked for a record, until Inbox.pop has it.
  call  Link.call: a request, until the kernel's answer is there.

CPU and GPU have no common clock, so no figure is of one direction alone: 'push'
includes the counter's way back to the CPU, and 'pop' the flag's way to the GPU.
Records, requests and answers have 64 bytes; the kernel pushes and answers without a
fence (push_relaxed, answer_relaxed).

--cpu keeps the measuring thread on one CPU, such as one that was isolated for it. The
GPU's part is a kernel of one thread. The driver assembles it, so no compiler is needed.
The kernel ends after its rounds, and when this program ends. If this program is
stopped (Ctrl-Z), the kernel goes on waiting. The simulated GPU has no kernels: there a
Python thread answers, and the figures are those of two Python threads.

examples:
  gdrpy pplat
  gdrpy pplat --what call --cpu 3 --count 1000000 --plot calls.png
  gdrpy pplat --what push,pop,call --json > rings.json
  gdrpy pplat --what flag --backend nvrm

exit status:
  0    measured, and every answer and record was right
  1    one was wrong or missing, or the plot could not be written
  2    wrong usage, or no backend can be used here
  130  ended by Ctrl-C; what was measured until then is shown
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import gdrpy
from gdrpy import Mapping, Timeout
from gdrpy.cli import options
from gdrpy.cli.data import Mismatch
from gdrpy.cli.exits import CommandError
from gdrpy.cli.measure import plot, records
from gdrpy.cli.measure.distribution import Scale, bars_table, format_us
from gdrpy.cli.measure.pingpong import FINISHED, Ending, play, responder
from gdrpy.cli.measure.report import Report, measured_region
from gdrpy.cli.measure.resident import KERNEL, THREAD
from gdrpy.cli.measure.timing import Samples, clock_cost, pinned_to
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output

#: What can be measured, in the order in which it is shown.
FLAG = "flag"
WHAT = (FLAG, *records.WAYS)

#: The places of the flag and of the reply, in the order in which they are shown.
GPU, PINNED = "GPU memory", "pinned memory"
_SHORT = {GPU: "GPU", PINNED: "pinned"}
WAYS = ((GPU, PINNED), (PINNED, PINNED), (GPU, GPU), (PINNED, GPU))

#: The most rounds of one kernel that answers flags: its time must not run out, even where two
#: threads and other programs share a CPU. And of one for records, whose kernels take the driver
#: longer to assemble. The first rounds, while it starts, do not count.
_ROUNDS_A_RUN, _RECORDS_A_RUN = 2000, 20_000
_FIRST_ROUNDS = 100

#: The default numbers of rounds.
_ROUNDS = 100_000
_SIMULATED_ROUNDS = 2000
#: Of fewer rounds p99.99 would be the maximum.
_TAIL_ROUNDS = 10_000

_PLACE_BYTES = 4096
_REPLY_OFFSET, _ASKED_OFFSET, _WRONG_OFFSET = 128, 256, 384

TITLE = "Time of one round from the CPU to a resident kernel and back"

#: What a round is, in calls.
_CALLS = {
    FLAG: "Flag.set to Flag.wait",
    "push": "Channel.push to Channel.drain",
    "pop": "Flag.set to Inbox.pop",
    "call": "Link.call",
}

#: Plays so many rounds, the first of which do not count: the nanoseconds of each.
Play = Callable[[int], list[int]]


class Way(NamedTuple):
    """What is measured: the name of its row, what the JSON says of it, and its player."""

    name: str
    told: dict[str, object]
    play: Play


def add_arguments(parser: CommandParser) -> None:
    options.add_gpu(parser)
    about = "what to measure, of flag, push, pop and call (default: all)"
    parser.add_argument("--what", type=_what, metavar="WHAT,...", default=list(WHAT), help=about)
    default = f"(default: {_ROUNDS}, and {_SIMULATED_ROUNDS} on the simulated GPU)"
    about = f"rounds of each row {default}"
    parser.option("--count", options.positive_number, "N", about)
    parser.option("--cpu", _cpu, "N", "the CPU to measure from (default: any)")
    plot.add_option(parser, "the distributions")


def _what(text: str) -> list[str]:
    chosen = text.split(",")
    for one in chosen:
        if one not in WHAT:
            raise argparse.ArgumentTypeError(f"{one!r} is none of {', '.join(WHAT)}")
    return [one for one in WHAT if one in chosen]


def _cpu(text: str) -> int:
    cpu = options.whole_number(text)
    try:
        with pinned_to(cpu):
            return cpu
    except (OSError, OverflowError):
        raise argparse.ArgumentTypeError(f"no thread may run on CPU {cpu}: see lscpu -e") from None


def run(args: argparse.Namespace, output: Output) -> int:
    with (
        measured_region(args, output, _PLACE_BYTES) as (region, report),
        gdrpy.page_locked(_PLACE_BYTES, args.device) as host,
    ):
        clock_ns = clock_cost()
        count = args.count or (_SIMULATED_ROUNDS if report.header.simulated else _ROUNDS)
        places = {GPU: region.cpu, PINNED: host}
        try:
            told, results = _measure(places, args, count, output, report)
        except (Mismatch, Timeout) as wrong:
            raise CommandError(str(wrong)) from wrong

    if not results:
        return report.broken_off(results=[])
    kind = THREAD if report.header.simulated else KERNEL
    output.prose(f"answered by {kind}; reading the clock costs {clock_ns:.0f} ns")
    scale = Scale(results.values())
    title = f"us a round, {'up to ' * report.interrupted}{count} rounds"
    fewest = min(len(one.values) for one in results.values())
    tail, percent = ("p99.99", 99.99) if fewest >= _TAIL_ROUNDS else ("max", 100)
    more = {tail: [format_us(one.percentile(percent)) for one in results.values()]}
    output.show(bars_table(title, "there and back", results, scale, output.width(), more))
    measured = dict.fromkeys(str(told[name]["what"]) for name in results)
    calls = ", ".join(_CALLS[what] for what in measured)
    return report.finish(
        f"us of one round by one thread, from Python: {calls}; the clock is in the figures.",
        plot.of_distributions(TITLE, f"one round, answered by {kind}", results, scale),
        answered_by=kind,
        cpu=args.cpu,
        clock_nanoseconds=clock_ns,
        results=[
            {
                **told[name],
                "nanoseconds": one.json(),
                "histogram": scale.json(one),
                "verified": True,
            }
            for name, one in results.items()
        ],
    )


def _measure(
    places: dict[str, Mapping],
    args: argparse.Namespace,
    count: int,
    output: Output,
    report: Report,
) -> tuple[dict[str, dict[str, object]], dict[str, Samples]]:
    """What the JSON says of every row, and its samples, by the row's name."""
    told: dict[str, dict[str, object]] = {}
    results = {}
    most = {what: _ROUNDS_A_RUN if what == FLAG else _RECORDS_A_RUN for what in args.what}
    rows = {what: len(WAYS) if what == FLAG else 1 for what in args.what}
    runs = sum(rows[what] * -(-count // most[what]) for what in args.what)
    with report.measuring(), output.progress("pplat", runs) as begin:
        for what in args.what:
            with _ways(what, places, args) as ways:
                for way in ways:
                    samples: list[int] = []
                    try:
                        while len(samples) < count:
                            begin(way.name)
                            rounds = _FIRST_ROUNDS + min(count - len(samples), most[what])
                            samples += way.play(rounds)[_FIRST_ROUNDS:]
                    finally:
                        if samples:
                            told[way.name], results[way.name] = way.told, Samples(samples)
    return told, results


@contextmanager
def _ways(what: str, places: dict[str, Mapping], args: argparse.Namespace) -> Iterator[list[Way]]:
    """The rows of one ``what``."""
    if what == FLAG:
        yield [
            Way(
                f"flag {_SHORT[flag]} -> {_SHORT[reply]}",
                {"what": FLAG, "flag": flag, "reply": reply},
                partial(_play, places[flag], places[reply], args),
            )
            for flag, reply in WAYS
        ]
        return
    asked, wrong = places[GPU].flag(_ASKED_OFFSET), places[PINNED].flag(_WRONG_OFFSET)
    with records.opened(what, asked, wrong, args.device, args.backend) as ring:

        def play_records(rounds: int) -> list[int]:
            with ring.other_end(rounds) as numbers, pinned_to(args.cpu):
                return ring.play(numbers)

        yield [Way(ring.name, {"what": what, "record_nbytes": records.NBYTES}, play_records)]


def _play(flag: Mapping, reply: Mapping, args: argparse.Namespace, rounds: int) -> list[int]:
    ping, pong = flag.flag(0), reply.flag(_REPLY_OFFSET)
    late: Timeout | None = None
    with responder(ping, pong, rounds, device=args.device) as answering:
        try:
            with pinned_to(args.cpu):
                samples = play(ping, pong, rounds)
        except Timeout as error:
            late = error
    ending = answering.ending
    if late or ending != Ending(FINISHED, rounds):
        how = f"{ending.how} after {ending.answered} of {rounds} rounds"
        raise CommandError(f"{answering.kind}: {how}" + (f": {late}" if late else ""))
    return samples
