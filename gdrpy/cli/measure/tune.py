"""``gdrpy tune``: find out which way to copy is the faster one here, and keep it."""

from __future__ import annotations

import argparse
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

import gdrpy
from gdrpy import _tuned
from gdrpy.cli import hostmemory, options
from gdrpy.cli.exits import FAILED, OK, UNUSABLE, CommandError
from gdrpy.cli.header import gpu_header
from gdrpy.cli.measure import crossovers
from gdrpy.cli.measure.crossovers import KIB, ROOM, Figure, Meter, Way
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import approximate_size, format_size
from gdrpy.cli.writable import why_not_writable
from gdrpy.limits import BUILT_IN, NEVER, Limits

if TYPE_CHECKING:
    from gdrpy.cli.options import Commands

#: Host memory taken, in times the region's size: a buffer of either kind.
_HOST_COPIES = 2
#: What arrives is looked at in copies of up to so many bytes.
_VERIFIED = 4 << 20

#: The same copy at the beginning and at the end must not take longer by this factor.
_STEADY = 1.5
_REFERENCE = Way(True, 1), 64 * KIB

METHOD = (
    "Each time is the median of warm samples, of calls made from Python. A limit is the size from "
    "which on a way is taken, chosen so that the least time is lost over all sizes measured."
)

_MEANING = {
    "write_threads": "stores by several threads",
    "threads_to": "  how many threads",
    "write_dma": "DMA from ordinary memory",
    "lanes": "  how many threads at most",
    "write_dma_pinned": "DMA from page-locked memory",
    "read_threads": "loads by several threads",
    "threads_from": "  how many threads",
    "read_dma": "DMA instead of loads",
}
#: How many threads a way takes says nothing where it is never taken.
_THREADS_OF = {"threads_to": "write_threads", "lanes": "write_dma", "threads_from": "read_threads"}


def add_parser(commands: Commands) -> None:
    """Add ``tune`` to the command line."""
    parser = options.add_command(
        commands,
        "tune",
        run,
        summary="measure which way to copy is the faster one here, and keep it",
        description=(
            "region.write and region.read choose among CPU stores and loads through the mapping,\n"
            "by one thread or several, and DMA. From which size on each is the faster one depends\n"
            "on the GPU, the bus and the CPU; what is built in was measured on one machine. This\n"
            "measures it here, in about ten seconds, and keeps it for programs that start later,\n"
            "as long as GPU, driver and CPU are the same. Let nothing else run meanwhile.\n"
            "\n"
            "It is kept in $XDG_CACHE_HOME/gdrpy (~/.cache/gdrpy). GDRPY_TUNING=0 has a program\n"
            "use what is built in. On the simulated GPU the figures are those of host memory, and\n"
            "are kept for the simulated GPU alone."
        ),
        examples=(
            "gdrpy tune                  measure, and keep it\n"
            "gdrpy tune --dry-run        measure, and keep nothing\n"
            "gdrpy tune --show           what holds for this GPU now\n"
            "gdrpy tune --reset          back to what is built in"
        ),
        exit_status=(
            "0  done\n"
            "1  nothing was kept: other work disturbed the measurement, data that arrived was\n"
            "   wrong, or the file could not be written\n"
            "2  wrong usage, no backend can be used here, or nothing can be kept here"
        ),
    )
    options.add_backend(parser)
    options.add_device(parser)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--dry-run", action="store_true", help="keep nothing")
    instead.add_argument("--show", action="store_true", help="measure nothing, tell what holds")
    instead.add_argument("--reset", action="store_true", help="delete what is kept")
    parser.add_argument(
        "--seconds",
        type=options.seconds,
        default=0.03,
        metavar="S",
        help="time to spend on each of some 180 figures, at least three samples (default: 0.03)",
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Show, reset, or measure and keep."""
    if args.show:
        return _show(args.device, _place(args.device), output)
    if args.reset:
        return _reset(_place(args.device), output)
    if not args.dry_run and (why := why_not_writable(_place(args.device), replaced=True)):
        raise CommandError(f"cannot keep the limits: {why}; see --dry-run", UNUSABLE)
    return _tune(args, output)


def _place(device: int) -> Path:
    """Where the limits are kept. Raises CommandError where there is no such place."""
    try:
        return _tuned.path(device)
    except FileNotFoundError as error:
        raise CommandError(f"{error.filename}: {error.strerror}", UNUSABLE) from error


def _show(device: int, file: Path, output: Output) -> int:
    kept = _tuned.load(device)
    off = os.environ.get("GDRPY_TUNING") == "0"
    if off:
        why = "built in: GDRPY_TUNING is 0"
    elif kept:
        why = f"measured here, kept in {file}"
    elif file.exists():
        why = f"built in: {file} is not of this GPU, driver and CPU, or cannot be read"
    else:
        why = "built in: nothing was measured for this GPU"
    limits = BUILT_IN if off or kept is None else kept
    output.show(_limits_table({"holds": limits}))
    output.line(why)
    output.finish(
        {
            "limits": _limits_json(limits),
            "why": why,
            "measured": limits is kept,
            "file": str(file),
            "origin": _tuned.origin(device),
        }
    )
    return OK


def _reset(file: Path, output: Output) -> int:
    there = file.exists()
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(f"cannot delete {file}: {error.strerror}") from error
    output.line(f"deleted {file}" if there else "nothing is kept for this GPU")
    output.finish({"deleted": str(file) if there else None})
    return OK


def _tune(args: argparse.Namespace, output: Output) -> int:
    cpus = len(os.sched_getaffinity(0))
    with gdrpy.alloc(ROOM, args.device, backend=args.backend) as region:
        header = gpu_header(args.command_line, args.device, region.cpu.backend)
        header.announce(output)
        hostmemory.require(
            ROOM * (_HOST_COPIES + bool(header.simulated)), simulated=header.simulated
        )
        meter = Meter(region, args.seconds, secrets.randbits(32))
        limits, drift = _measure(meter, cpus, output)
        wrong = _wrong(meter)

    output.show(_times_table(meter.figures))
    output.show(_limits_table({"measured": limits, "built in": BUILT_IN}))
    output.line(METHOD)
    steady = drift <= _STEADY
    for problem in wrong:
        output.error(problem)
    if not steady:
        output.error(
            f"the same copy took {drift:.1f} times as long at one end of the measurement as at the "
            f"other: run it again while nothing else does"
        )
    good = steady and not wrong
    file = _keep(args, limits, header.json(), output) if good and not args.dry_run else None
    output.finish(
        {
            "header": header.json(),
            "method": METHOD,
            "seconds_a_figure": args.seconds,
            "limits": _limits_json(limits),
            "built_in": _limits_json(BUILT_IN),
            "drift": drift,
            "wrong": wrong,
            "file": file,
            "figures": [_figure_json(figure) for figure in meter.figures],
        }
    )
    return OK if good and (file or args.dry_run) else FAILED


def _measure(meter: Meter, cpus: int, output: Output) -> tuple[Limits, float]:
    """The limits, and by what factor the clock drifted meanwhile."""
    steps: list[Way] = []

    def count(way: Way, _: int) -> float:
        steps.append(way)
        return 1 / way.threads  # with several threads there is the most to measure

    crossovers.choose(count, cpus)
    with output.progress("tune", len(steps) + 2) as begin:

        def clock(way: Way, nbytes: int) -> float:
            begin(f"{way}, {format_size(nbytes)}")
            return meter.time(way, nbytes)

        before = clock(*_REFERENCE)
        limits = crossovers.choose(clock, cpus)
        after = clock(*_REFERENCE)
    return limits, max(before, after) / min(before, after)


def _wrong(meter: Meter) -> list[str]:
    """What is wrong with the data that arrives, by each way that was measured."""
    largest: dict[Way, int] = {}
    for figure in meter.figures:
        nbytes = min(figure.nbytes, _VERIFIED)
        largest[figure.way] = max(nbytes, largest.get(figure.way, 0))
    found = {way: meter.difference(way, nbytes) for way, nbytes in largest.items()}
    return [f"{way} of {format_size(largest[way])}: {one}" for way, one in found.items() if one]


def _keep(
    args: argparse.Namespace, limits: Limits, header: dict[str, Any], output: Output
) -> str | None:
    """Write the limits down; where, or None if that failed."""
    try:
        file = _tuned.save(args.device, limits, header=header)
    except OSError as error:
        output.error(f"cannot keep the limits: {error.filename}: {error.strerror}")
        return None
    output.line(f"kept in {file}, for programs that start from now on")
    return str(file)


def _times_table(figures: list[Figure]) -> Table:
    """Microseconds by size, of the ways that were measured at more than one."""
    times: dict[Way, dict[int, float]] = {}
    for figure in figures:
        times.setdefault(figure.way, {})[figure.nbytes] = figure.seconds
    ways = [way for way, by_size in times.items() if len(by_size) > 2]
    table = Table(title="Microseconds a copy", title_justify="left")
    table.add_column("size", justify="right", no_wrap=True)
    for way in ways:
        table.add_column(str(way), justify="right")
    powers_of_four = {1 << power for power in range(8, 40, 2)}
    for nbytes in sorted(powers_of_four & {figure.nbytes for figure in figures}):
        cells = [times[way].get(nbytes) for way in ways]
        table.add_row(format_size(nbytes), *("" if t is None else f"{t * 1e6:.3g}" for t in cells))
    return table


def _limits_table(columns: dict[str, Limits]) -> Table:
    table = Table(title="Limits", title_justify="left")
    table.add_column("limit", no_wrap=True)
    table.add_column("from this size on", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for field, meaning in _MEANING.items():
        table.add_row(field, meaning, *(_limit_words(field, one) for one in columns.values()))
    return table


def _limit_words(field: str, limits: Limits) -> str:
    value = getattr(limits, field)
    if way := _THREADS_OF.get(field):
        return "-" if getattr(limits, way) == NEVER else str(value)
    return "never" if value == NEVER else approximate_size(value)


def _limits_json(limits: Limits) -> dict[str, int | None]:
    """Limits by name; null for a way that is never the faster one."""
    return {name: None if value == NEVER else value for name, value in limits._asdict().items()}


def _figure_json(figure: Figure) -> dict[str, Any]:
    return {
        "way": str(figure.way),
        "direction": "write" if figure.way.writes else "read",
        "by": figure.way.by,
        "threads": figure.way.threads,
        "page_locked": figure.way.pinned,
        "size": figure.nbytes,
        "seconds": figure.seconds,
    }
