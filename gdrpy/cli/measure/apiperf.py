"""Makes rounds of calls, and times each: a region is allocated, exported, imported with and
without its GPU view, mapped in part, and closed; then memory of cuMemAlloc is pinned,
mapped, and released, if a backend can pin. The first round is shown apart, as 'first':
it includes what a process makes once (contexts, checks).

At most two regions of the size and one such allocation exist at a time. Bytes stored
through each new view are looked for through another, which is not timed.

examples:
  gdrpy apiperf
  gdrpy apiperf --size 1G --count 50
  gdrpy apiperf --backend nvrm --plot calls.svg --json > apiperf.json

exit status:
  0  measured, and the bytes were right
  1  bytes were wrong, a call failed, or the plot could not be written
  2  wrong usage, or no backend can be used here
"""

from __future__ import annotations

import argparse

import gdrpy
from gdrpy.cli import options
from gdrpy.cli.data import Mismatch
from gdrpy.cli.exits import CommandError
from gdrpy.cli.measure import plot
from gdrpy.cli.measure.apicalls import NOTHING, PIN_CALLS, REGION_CALLS, Rounds
from gdrpy.cli.measure.distribution import Scale, bars_table, format_us
from gdrpy.cli.measure.report import Report
from gdrpy.cli.measure.timing import Samples
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import format_size, parse_size

METHOD = (
    "us a call, each timed by itself, from Python; the cost of timing is in the figures, and is "
    f"the row {NOTHING}."
)


def add_arguments(parser: CommandParser) -> None:
    calls = (f"{name:18}{what}" for name, what in (REGION_CALLS | PIN_CALLS).items())
    parser.description = f"{parser.description}" + "\n".join(calls)
    options.add_gpu(parser)
    parser.option("--size", parse_size, "SIZE", "size of region and allocation", "1M")
    parser.option("--count", options.positive_number, "N", "rounds, after the first one", "200")
    plot.add_option(parser, "the distributions")


def run(args: argparse.Namespace, output: Output) -> int:
    plot.require_matplotlib(args.plot)
    rounds = Rounds(args.size, args.device, args.backend)
    try:
        rounds.region_round()
        report = Report(args, output, rounds.backend_used)
        absent = _measure(rounds, args.count, output)
    except Mismatch as wrong:
        raise CommandError(str(wrong)) from wrong

    first = [times.pop(0) for times in rounds.times.values()]
    results = {name: Samples(times) for name, times in rounds.times.items()}
    scale = Scale(results.values())
    title = f"us a call, {format_size(args.size)}, {args.count} rounds"
    more = {"first": [format_us(ns) for ns in first]}
    output.show(bars_table(title, "call", results, scale, output.width(), more))
    if absent:
        output.line(f"pins: not measured: {absent}")
    return report.finish(
        METHOD,
        plot.of_distributions(
            f"Time of each call, {format_size(args.size)}", "one call", results, scale
        ),
        size=args.size,
        pins_not_measured=absent,
        results=[
            {
                "call": name,
                "what": (REGION_CALLS | PIN_CALLS)[name],
                "first_nanoseconds": before,
                "nanoseconds": one.json(),
                "histogram": scale.json(one),
            }
            for (name, one), before in zip(results.items(), first, strict=True)
        ],
    )


def _measure(rounds: Rounds, count: int, output: Output) -> str | None:
    """Make the rounds, less one of regions; the reason if pins cannot be made, else None."""
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
