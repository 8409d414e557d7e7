"""region.write and region.read choose among CPU stores and loads through the mapping, by one
thread or several, DMA by CUDA, and the copy engine without CUDA. The size from which
each is faster depends on the GPU, the bus and the CPU; the built-in sizes were measured
on one machine. This command measures them here, in about ten seconds, and keeps them
for programs that start later, as long as GPU, driver and CPU are the same. Let nothing
else run meanwhile.

The limits are kept in $XDG_CACHE_HOME/gdrpy (~/.cache/gdrpy). With GDRPY_TUNING=0 a
program uses the built-in limits. On the simulated GPU the figures are those of host
memory, and are kept for the simulated GPU alone.

examples:
  gdrpy tune                  # measure, and keep the limits
  gdrpy tune --dry-run        # measure, and keep nothing
  gdrpy tune --show           # the limits for this GPU now
  gdrpy tune --reset          # back to the built-in limits

exit status:
  0    done
  1    nothing was kept: other work disturbed the measurement, wrong data arrived, or
       the file could not be written
  2    wrong usage, no backend can be used here, or nothing can be kept here
  130  ended by Ctrl-C; nothing was kept
"""

from __future__ import annotations

import argparse
import os
import secrets
from pathlib import Path
from typing import Any

from gdrpy.cli import options
from gdrpy.cli.exits import FAILED, OK, UNUSABLE, CommandError
from gdrpy.cli.measure import crossovers
from gdrpy.cli.measure.crossovers import (
    KIB,
    ORDINARY,
    PAGE_LOCKED,
    REGISTERED,
    ROOM,
    CopyTime,
    Meter,
    Way,
)
from gdrpy.cli.measure.distribution import format_us
from gdrpy.cli.measure.report import measured_region
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output, Renderable, table
from gdrpy.cli.sizes import approximate_size, format_size
from gdrpy.cli.writable import why_not_writable
from gdrpy.copies import tuning
from gdrpy.copies.tuning import BUILT_IN, NEVER, Limits

#: Host memory taken, in multiples of the region's size: a buffer of each kind.
_HOST_COPIES = 3
#: Data is verified in copies of up to this many bytes.
_VERIFIED = 4 << 20

#: The times of the same copy at the beginning and at the end may differ by this factor.
_STEADY = 1.5
_REFERENCE = Way(True, 1), 64 * KIB

METHOD = (
    "Each time is the median of warm samples of calls from Python; x 2 is by two threads. A limit "
    "is the size from which a way is taken, chosen so that the least time is lost over all sizes "
    "measured."
)

_MEANING = {
    "write_threads": "stores by several threads",
    "threads_to": "  how many threads",
    "write_dma": "DMA, no engine",
    "lanes": "  how many threads at most",
    "write_dma_pinned": "DMA, page-locked memory",
    "write_engine": "copy engine",
    "write_registered": "  registered memory",
    "read_threads": "loads by several threads",
    "threads_from": "  how many threads",
    "read_dma": "DMA, no engine",
    "read_dma_pinned": "DMA, page-locked memory",
    "read_engine": "copy engine",
    "read_registered": "  registered memory",
}
#: The number of threads of a way says nothing if the way is never taken.
_THREADS_OF = {"threads_to": "write_threads", "lanes": "write_dma", "threads_from": "read_threads"}


def add_arguments(parser: CommandParser) -> None:
    options.add_gpu(parser)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--dry-run", action="store_true", help="keep nothing")
    instead.add_argument("--show", action="store_true", help="measure nothing, show the limits")
    instead.add_argument("--reset", action="store_true", help="delete the kept limits")
    about = "seconds for each of up to 280 figures, at least three samples"
    parser.option("--seconds", options.seconds, "S", about, "0.03")


def run(args: argparse.Namespace, output: Output) -> int:
    if args.show:
        return _show(args.device, _place(args.device), output)
    if args.reset:
        return _reset(_place(args.device), output)
    if not args.dry_run and (why := why_not_writable(_place(args.device), replaced=True)):
        raise CommandError(f"cannot keep the limits: {why}; see --dry-run", UNUSABLE)
    return _tune(args, output)


def _place(device: int) -> Path:
    """The file of the limits. Raises CommandError if there is no place for it."""
    try:
        return Path(tuning.path(device))
    except FileNotFoundError as error:
        raise CommandError(f"{error.filename}: {error.strerror}", UNUSABLE) from error


def _show(device: int, file: Path, output: Output) -> int:
    kept = tuning.load(device)
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
    about = {"why": why, "measured": limits is kept, "file": str(file)}
    output.finish({"limits": _limits_json(limits), **about, "origin": tuning.origin(device)})
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
    with measured_region(args, output, ROOM, ROOM * _HOST_COPIES) as (region, report):
        meter = Meter(region, args.seconds, secrets.randbits(32))
        try:
            limits, drift = _measure(meter, cpus, output)
        except KeyboardInterrupt:
            return report.broken_off(figures=[_figure_json(figure) for figure in meter.figures])
        wrong = _wrong(meter)

    _show_times(meter.figures, output)
    output.show(_limits_table({"measured": limits, "built in": BUILT_IN}))
    output.prose(METHOD)
    steady = drift <= _STEADY
    for problem in wrong:
        output.error(problem)
    if not steady:
        output.error(
            f"the same copy took {drift:.1f} times as long at one end of the measurement as at the "
            f"other: run it again while nothing else runs"
        )
    good = steady and not wrong
    file = _keep(args, limits, report.header.json(), output) if good and not args.dry_run else None
    output.finish(
        {
            "header": report.header.json(),
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
    """The limits, and the factor by which times drifted meanwhile."""
    steps: list[Way] = []

    def count(way: Way, _: int) -> float:
        steps.append(way)
        return 1 / way.threads  # several threads give the most to measure

    crossovers.choose(count, cpus, meter.engine)
    with output.progress("tune", len(steps) + 2) as begin:

        def clock(way: Way, nbytes: int) -> float:
            begin(f"{way}, {format_size(nbytes)}")
            return meter.time(way, nbytes)

        before = clock(*_REFERENCE)
        limits = crossovers.choose(clock, cpus, meter.engine)
        after = clock(*_REFERENCE)
    return limits, max(before, after) / min(before, after)


def _wrong(meter: Meter) -> list[str]:
    """The errors in the data that arrives, for each way that was measured."""
    largest: dict[Way, int] = {}
    for figure in meter.figures:
        nbytes = min(figure.nbytes, _VERIFIED)
        largest[figure.way] = max(nbytes, largest.get(figure.way, 0))
    found = {way: meter.difference(way, nbytes) for way, nbytes in largest.items()}
    return [f"{way} of {format_size(largest[way])}: {one}" for way, one in found.items() if one]


def _keep(
    args: argparse.Namespace, limits: Limits, header: dict[str, Any], output: Output
) -> str | None:
    """Keep the limits; the name of the file, or None if that failed."""
    try:
        file = tuning.save(args.device, limits, header=header)
    except OSError as error:
        output.error(f"cannot keep the limits: {error.filename}: {error.strerror}")
        return None
    output.line(f"kept in {file}, for programs that start from now on")
    return file


def _show_times(figures: list[CopyTime], output: Output) -> None:
    """Show microseconds by size, for the ways that were measured at several sizes."""
    times: dict[Way, dict[int, float]] = {}
    for figure in figures:
        times.setdefault(figure.way, {})[figure.nbytes] = figure.seconds
    for title, writes in (("write", True), ("read", False)):
        shown = [way for way, one in times.items() if way.writes == writes and len(one) > 2]
        powers_of_four = {1 << power for power in range(8, 40, 2)}
        rows = [
            [format_size(nbytes), *(_microseconds(times[way].get(nbytes)) for way in shown)]
            for nbytes in sorted(powers_of_four & {size for way in shown for size in times[way]})
        ]
        columns = ["size", *map(_column, shown)]
        heading = f"Microseconds a {title}"
        output.show(table(columns, rows, heading, right=columns, whole=["size"]))


def _column(way: Way) -> str:
    """The title of a narrow column."""
    kind = {"mapping": "CPU", "dma": "DMA", "engine": "engine"}[way.by]
    if way.host == ORDINARY:
        return kind if way.by == "engine" else f"{kind}\nx {way.threads}"
    return f"{kind}\n" + {PAGE_LOCKED: "page-\nlocked", REGISTERED: "regis-\ntered"}[way.host]


def _microseconds(seconds: float | None) -> str:
    return "" if seconds is None else format_us(seconds * 1e9)


def _limits_table(columns: dict[str, Limits]) -> Renderable:
    rows = [
        [field, meaning, *(_limit_words(field, one) for one in columns.values())]
        for field, meaning in _MEANING.items()
    ]
    names = ["limit", "from this size on", *columns]
    return table(names, rows, "Limits", right=columns, whole=["limit", *columns])


def _limit_words(field: str, limits: Limits) -> str:
    value = getattr(limits, field)
    if way := _THREADS_OF.get(field):
        return "-" if getattr(limits, way) == NEVER else str(value)
    return "never" if value == NEVER else approximate_size(value)


def _limits_json(limits: Limits) -> dict[str, int | None]:
    """Limits by name; None for a way that is never faster."""
    return {name: None if value == NEVER else value for name, value in limits._asdict().items()}


def _figure_json(figure: CopyTime) -> dict[str, Any]:
    return {
        "way": str(figure.way),
        "direction": "write" if figure.way.writes else "read",
        "by": figure.way.by,
        "threads": figure.way.threads,
        "host": figure.way.host,
        "size": figure.nbytes,
        "seconds": figure.seconds,
    }
