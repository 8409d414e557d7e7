"""``gdrpy apiperf``: what each call costs that makes GPU memory reachable, or gives it back."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import gdrpy
from gdrpy.cli import options
from gdrpy.cli.data import Mismatch
from gdrpy.cli.exits import FAILED, OK, CommandError
from gdrpy.cli.header import gpu_header
from gdrpy.cli.measure import plot
from gdrpy.cli.measure.apicalls import NOTHING, PIN_CALLS, REGION_CALLS, Rounds
from gdrpy.cli.measure.distribution import Distribution, Scale, format_us, table
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import format_size, parse_size

if TYPE_CHECKING:
    from gdrpy.cli.options import Commands


METHOD = (
    "us a call, each timed by itself, from Python; what timing costs is in the figures, and is the "
    f"row {NOTHING}."
)


def add_parser(commands: Commands) -> None:
    """Add ``apiperf`` to the command line."""
    parser = options.add_command(
        commands,
        "apiperf",
        run,
        summary="what each call costs: alloc, import, map, pin, and back",
        description=(
            "Makes rounds of calls, and times each: a region is allocated, exported, imported\n"
            "with and without its GPU view, mapped in part, and closed; then memory of\n"
            "cuMemAlloc is pinned, mapped, and given back, where a backend can pin. The first\n"
            "round is apart, as 'first': what a process makes once is in it (contexts, checks).\n"
            "\n"
            "At most two regions of the size are open at a time, and one such allocation. Bytes\n"
            "stored through each new view are looked for through another, which is not timed.\n"
            "\n"
            + "\n".join(f"{name:18}{what}" for name, what in (REGION_CALLS | PIN_CALLS).items())
        ),
        examples=(
            "gdrpy apiperf\n"
            "gdrpy apiperf --size 1G --count 50\n"
            "gdrpy apiperf --backend nvrm --plot calls.svg --json > apiperf.json"
        ),
        exit_status=(
            "0  measured, and the bytes were right\n"
            "1  bytes were wrong, a call failed, or the plot could not be written\n"
            "2  wrong usage, or no backend can be used here"
        ),
    )
    options.add_backend(parser)
    options.add_device(parser)
    parser.add_argument(
        "--size",
        type=parse_size,
        default=1 << 20,
        help="size of region and allocation (default: 1M)",
    )
    parser.add_argument(
        "--count",
        type=options.positive_number,
        metavar="N",
        default=200,
        help="rounds, after the first one (default: 200)",
    )
    plot.add_option(parser, "the distributions")


def run(args: argparse.Namespace, output: Output) -> int:
    """Measure, print, draw; FAILED if the data was wrong."""
    plot.require_matplotlib(args.plot)
    rounds = Rounds(args.size, args.device, args.backend)
    try:
        rounds.region_round()
        header = gpu_header(args.command_line, args.device, rounds.backend_used)
        header.announce(output)
        absent = _measure(rounds, args.count, output)
    except Mismatch as wrong:
        raise CommandError(str(wrong)) from wrong

    first = [times.pop(0) for times in rounds.times.values()]
    results = [Distribution(name, times) for name, times in rounds.times.items()]
    scale = Scale(results)
    title = f"us a call, {format_size(args.size)}, {args.count} rounds"
    output.show(table(title, "call", results, scale, {"first": [format_us(ns) for ns in first]}))
    if absent:
        output.line(f"pins: not measured: {absent}")
    output.line(METHOD)
    drawn = plot.draw(
        args.plot, header, output, lambda axes: plot.distributions(axes, results, scale)
    )
    output.finish(
        {
            "header": header.json(),
            "method": METHOD,
            "size": args.size,
            "pins_not_measured": absent,
            "results": [
                {
                    "call": one.label,
                    "what": (REGION_CALLS | PIN_CALLS)[one.label],
                    "first_nanoseconds": before,
                    "nanoseconds": one.json(),
                    "histogram": scale.json(one),
                }
                for one, before in zip(results, first, strict=True)
            ],
        }
    )
    return OK if drawn else FAILED


def _measure(rounds: Rounds, count: int, output: Output) -> str | None:
    """Make the rounds, less one of regions; why there were none of pins, None if there were."""
    with output.progress("apiperf", 2 * count) as begin:
        for _ in range(count):
            begin("regions")
            rounds.region_round()
        try:
            rounds.pin_round()
        except (gdrpy.BackendUnavailable, gdrpy.InvalidHandle) as error:
            return str(error)
        for _ in range(count):
            begin("pins")
            rounds.pin_round()
    return None
