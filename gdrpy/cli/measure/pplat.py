"""``gdrpy pplat``: how long it takes from the CPU to the GPU and back."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import gdrpy
from gdrpy import Mapping, Timeout
from gdrpy.cli import options
from gdrpy.cli.data import Mismatch
from gdrpy.cli.exits import FAILED, OK, CommandError
from gdrpy.cli.header import gpu_header
from gdrpy.cli.measure import plot
from gdrpy.cli.measure.distribution import Distribution, Scale, table
from gdrpy.cli.measure.pingpong import FINISHED, Ending, play, responder
from gdrpy.cli.measure.sampling import clock_cost
from gdrpy.cli.output import Output

if TYPE_CHECKING:
    from gdrpy.cli.options import Commands

#: Where the flag and the reply lie, in the order in which they are shown.
GPU, PINNED = "GPU memory", "pinned memory"
WAYS = ((GPU, PINNED), (PINNED, PINNED), (GPU, GPU), (PINNED, GPU))

#: A responder answers so many rounds at most, so that its time is never up, even where two threads
#: and other programs share a CPU; the first ones, while it starts, do not count.
_ROUNDS_A_RUN = 2000
_FIRST_ROUNDS = 100

#: Rounds to play unless told otherwise.
_ROUNDS = 100_000
_SIMULATED_ROUNDS = 2000

_PLACE_BYTES = 4096
_REPLY_OFFSET = 128

METHOD = (
    "us from before Flag.set to after Flag.wait, from Python, by one thread; the clock is in the "
    "figures."
)


def add_parser(commands: Commands) -> None:
    """Add ``pplat`` to the command line."""
    parser = options.add_command(
        commands,
        "pplat",
        run,
        summary="ping-pong latency, CPU to GPU and back",
        description=(
            "Measures a round trip: the CPU stores a number into a flag, a thread on the GPU that\n"
            "waits for it stores the number into a reply, for which the CPU waits. All of the\n"
            "CPU's part is Python: Flag.set, then Flag.wait, with a reading of the clock before\n"
            "and after, whose cost is told and not taken off. Every answer must be its round's.\n"
            "\n"
            "The flag lies in GPU memory, and the CPU stores through the mapping; or it lies in\n"
            "pinned (page-locked host) memory, and the GPU looks for it over the bus. So does the\n"
            "reply: in pinned memory the CPU waits on its own cache, and in GPU memory it loads\n"
            "over the bus. The GPU's part is a kernel of one thread that stays for all rounds;\n"
            "the driver assembles it, and no compiler is needed. It ends by itself after 20 s.\n"
            "The simulated GPU has no kernels: there a Python thread answers, and the figures\n"
            "are those of two Python threads that pass flags to each other."
        ),
        examples=(
            "gdrpy pplat\n"
            "gdrpy pplat --count 1000000 --plot pingpong.png\n"
            "gdrpy pplat --backend nvrm --json > pplat.json"
        ),
        exit_status=(
            "0  measured, and every answer was right\n"
            "1  an answer was wrong or did not come, or the plot could not be written\n"
            "2  wrong usage, or no backend can be used here"
        ),
    )
    options.add_backend(parser)
    options.add_device(parser)
    parser.add_argument(
        "--count",
        type=options.positive_number,
        metavar="N",
        help=f"rounds of each of the four ways (default: {_ROUNDS}, and {_SIMULATED_ROUNDS} on the "
        "simulated GPU)",
    )
    plot.add_option(parser, "the distributions")


def run(args: argparse.Namespace, output: Output) -> int:
    """Measure, print, draw; FAILED if an answer was wrong."""
    plot.require_matplotlib(args.plot)
    with (
        gdrpy.alloc(_PLACE_BYTES, args.device, backend=args.backend) as region,
        gdrpy.pinned(_PLACE_BYTES, args.device) as host,
    ):
        header = gpu_header(args.command_line, args.device, region.cpu.backend)
        header.announce(output)
        clock_ns = clock_cost()
        count = args.count or (_SIMULATED_ROUNDS if header.simulated else _ROUNDS)
        places = {GPU: region.cpu, PINNED: host}
        try:
            results, kind = _measure(places, args.device, count, output)
        except Mismatch as wrong:
            raise CommandError(str(wrong)) from wrong

    output.line(f"answered by {kind}; reading the clock costs {clock_ns:.0f} ns")
    scale = Scale(results)
    output.show(table(f"us a round trip, {count} rounds", "flag -> reply", results, scale))
    output.line(METHOD)
    drawn = plot.draw(
        args.plot, header, output, lambda axes: plot.distributions(axes, results, scale)
    )
    output.finish(
        {
            "header": header.json(),
            "method": METHOD,
            "answered_by": kind,
            "clock_nanoseconds": clock_ns,
            "results": [
                {
                    "flag": flag,
                    "reply": reply,
                    "nanoseconds": one.json(),
                    "histogram": scale.json(one),
                    "verified": True,
                }
                for (flag, reply), one in zip(WAYS, results, strict=True)
            ],
        }
    )
    return OK if drawn else FAILED


def _measure(
    places: dict[str, Mapping], device: int, count: int, output: Output
) -> tuple[list[Distribution], str]:
    """The rounds of every way, and who answered."""
    results = []
    runs = -(-count // _ROUNDS_A_RUN)
    with output.progress("pplat", len(WAYS) * runs) as begin:
        for flag, reply in WAYS:
            label = f"{flag} -> {reply}"
            samples: list[int] = []
            while len(samples) < count:
                begin(label)
                rounds = _FIRST_ROUNDS + min(count - len(samples), _ROUNDS_A_RUN)
                taken, kind = _play(places[flag], places[reply], rounds, device)
                samples += taken[_FIRST_ROUNDS:]
            results.append(Distribution(label, samples))
    return results, kind


def _play(flag: Mapping, reply: Mapping, rounds: int, device: int) -> tuple[list[int], str]:
    ping, pong = flag.flag(0), reply.flag(_REPLY_OFFSET)
    late: Timeout | None = None
    with responder(ping, pong, rounds, device=device) as answering:
        try:
            samples = play(ping, pong, rounds)
        except Timeout as error:
            late = error
    ending = answering.ending
    if late or ending != Ending(FINISHED, rounds):
        how = f"{ending.how} after {ending.answered} of {rounds} rounds"
        raise CommandError(f"{answering.kind}: {how}" + (f": {late}" if late else ""))
    return samples, answering.kind
