"""Measures a round trip: the CPU stores a number into a flag, a thread on the GPU that waits
for it stores the number into a reply, and the CPU waits for the reply. The CPU's part
is Python: Flag.set, then Flag.wait, with a reading of the clock before and after; the
cost of the clock is printed, and not subtracted. Every answer must be its round's.
--cpu keeps the thread that plays on one CPU, such as one that was isolated for it.

The flag lies in GPU memory, and the CPU stores through the mapping; or it lies in
pinned (page-locked host) memory, and the GPU polls it over the bus. So does the reply:
in pinned memory the CPU polls its own cache, in GPU memory it loads over the bus. The
GPU's part is a kernel of one thread that runs through all rounds; the driver assembles
it, so no compiler is needed. It ends by itself after 20 s. The simulated GPU has no
kernels: there a Python thread answers, and the figures are those of two Python threads
that pass flags to each other.

examples:
  gdrpy pplat
  gdrpy pplat --cpu 3 --count 1000000 --plot pingpong.png
  gdrpy pplat --backend nvrm --json > pplat.json

exit status:
  0    measured, and every answer was right
  1    an answer was wrong or missing, or the plot could not be written
  2    wrong usage, or no backend can be used here
  130  ended by Ctrl-C; what was measured until then is shown
"""

from __future__ import annotations

import argparse

import gdrpy
from gdrpy import Mapping, Timeout
from gdrpy.cli import options
from gdrpy.cli.data import Mismatch
from gdrpy.cli.exits import CommandError
from gdrpy.cli.measure import plot
from gdrpy.cli.measure.distribution import Scale, bars_table, format_us
from gdrpy.cli.measure.pingpong import FINISHED, Ending, play, responder
from gdrpy.cli.measure.report import Report, measured_region
from gdrpy.cli.measure.timing import Samples, clock_cost, pinned_to
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output

#: The places of the flag and of the reply, in the order in which they are shown.
GPU, PINNED = "GPU memory", "pinned memory"
_SHORT = {GPU: "GPU", PINNED: "pinned"}
WAYS = ((GPU, PINNED), (PINNED, PINNED), (GPU, GPU), (PINNED, GPU))

#: The most rounds of one responder: its time must not run out, even where two threads and other
#: programs share a CPU. The first rounds, while it starts, do not count.
_ROUNDS_A_RUN = 2000
_FIRST_ROUNDS = 100

#: The default numbers of rounds.
_ROUNDS = 100_000
_SIMULATED_ROUNDS = 2000

_PLACE_BYTES = 4096
_REPLY_OFFSET = 128

TITLE = "Time of a signal from the CPU to the GPU and back, by the places of flag and reply"

METHOD = (
    "us from before Flag.set to after Flag.wait, from Python, by one thread; the clock is in the "
    "figures."
)


def add_arguments(parser: CommandParser) -> None:
    options.add_gpu(parser)
    default = f"(default: {_ROUNDS}, and {_SIMULATED_ROUNDS} on the simulated GPU)"
    about = f"rounds of each of the four ways {default}"
    parser.option("--count", options.positive_number, "N", about)
    parser.option("--cpu", _cpu, "N", "the CPU to play on (default: any)")
    plot.add_option(parser, "the distributions")


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
            results, kind = _measure(places, args, count, output, report)
        except Mismatch as wrong:
            raise CommandError(str(wrong)) from wrong

    if not results:
        return report.broken_off(results=[])
    output.prose(f"answered by {kind}; reading the clock costs {clock_ns:.0f} ns")
    scale = Scale(results.values())
    title = f"us a round trip, {'up to ' * report.interrupted}{count} rounds"
    more = {"p99.99": [format_us(one.percentile(99.99)) for one in results.values()]}
    output.show(bars_table(title, "flag -> reply", results, scale, output.width(), more))
    return report.finish(
        METHOD,
        plot.of_distributions(TITLE, f"round trip, answered by {kind}", results, scale),
        answered_by=kind,
        cpu=args.cpu,
        clock_nanoseconds=clock_ns,
        results=[
            {
                "flag": flag,
                "reply": reply,
                "nanoseconds": one.json(),
                "histogram": scale.json(one),
                "verified": True,
            }
            for (flag, reply), one in zip(WAYS, results.values(), strict=False)
        ],
    )


def _measure(
    places: dict[str, Mapping],
    args: argparse.Namespace,
    count: int,
    output: Output,
    report: Report,
) -> tuple[dict[str, Samples], str]:
    """The samples of every way, and who answered."""
    results, kind = {}, ""
    runs = -(-count // _ROUNDS_A_RUN)
    with report.measuring(), output.progress("pplat", len(WAYS) * runs) as begin:
        for flag, reply in WAYS:
            label = f"{_SHORT[flag]} -> {_SHORT[reply]}"
            samples: list[int] = []
            try:
                while len(samples) < count:
                    begin(label)
                    rounds = _FIRST_ROUNDS + min(count - len(samples), _ROUNDS_A_RUN)
                    taken, kind = _play(places[flag], places[reply], rounds, args)
                    samples += taken[_FIRST_ROUNDS:]
            finally:
                if samples:
                    results[label] = Samples(samples)
    return results, kind


def _play(
    flag: Mapping, reply: Mapping, rounds: int, args: argparse.Namespace
) -> tuple[list[int], str]:
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
    return samples, answering.kind
