"""Runs the benchmarks on the GPU that is there, and keeps what they found as one JSON file."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

import attach
import broker
import channel
import engine
import goals
import latency
import libgdrapi
import machine
import pingpong
import plots
import queued
import scatter
import threads
import transfers
from gdrpy import cuda
from harness import Session
from page import page
from publishing import NotPublishable
from table import Table
from tables import tables, wrong_data

#: Those that run kernels last: a kernel that fails takes the context with it.
_ALL = (
    latency,
    engine,
    threads,
    transfers,
    scatter,
    attach,
    libgdrapi,
    broker,
    pingpong,
    queued,
    channel,
)
MODULES: dict[str, Callable[[Session], None]] = {one.MODULE: one.run for one in _ALL}
RESULTS = Path(__file__).resolve().parent / "results"

#: Raised when a field of the result changes its meaning.
FORMAT = 2

SECONDS = 1.25
QUICK_SECONDS = 0.02
SIMULATED_NOTE = "measured on a simulated GPU: its figures say nothing about hardware"

_PLAIN_WIDTH = 200


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; what cannot be is refused with exit status 2."""
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description=__doc__)
    parser.add_argument(
        "--only", metavar="LIST", type=_modules, default=list(MODULES), help=", ".join(MODULES)
    )
    parser.add_argument("--quick", action="store_true", help="a few samples of fewer sizes")
    parser.add_argument(
        "--seconds", type=_seconds, help=f"for each comparison, {SECONDS} by default"
    )
    parser.add_argument("--output", metavar="DIR", type=Path, default=RESULTS)
    parser.add_argument("--commit", help="what is measured, where git cannot tell")
    return parser.parse_args(arguments)


def _modules(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in MODULES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(MODULES)}")
    return [name for name in MODULES if name in chosen]


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 60:
        raise argparse.ArgumentTypeError("must be more than 0 and at most 60")
    return value


def measuring_arguments(options: argparse.Namespace) -> list[str]:
    """The arguments that decide what is measured, and how long."""
    arguments = []
    if options.only != list(MODULES):
        arguments += ["--only", ",".join(options.only)]
    if options.quick:
        arguments.append("--quick")
    if options.seconds is not None:
        arguments += ["--seconds", f"{options.seconds:g}"]
    return arguments


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the chosen modules; the result as plain values."""
    start = time.monotonic()
    header = machine.describe(measuring_arguments(options), options.commit)
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    with _progress() as step, cuda.context(0):
        session = Session(seconds, options.quick, step)
        durations = {}
        for name in options.only:
            begun = time.monotonic()
            try:
                MODULES[name](session)
            except Exception as error:  # what the other modules found must not be lost
                traceback.print_exc()
                session.absent[name] = f"{type(error).__name__}: {error}"
            durations[name] = round(time.monotonic() - begun, 1)
    simulated = header["simulated"]
    return {
        "format": FORMAT,
        "note": SIMULATED_NOTE if simulated else None,
        "header": header,
        "modules": options.only,
        "quick": options.quick,
        "seconds_per_comparison": seconds,
        "duration_s": round(time.monotonic() - start, 1),
        "durations_s": durations,
        "measurements": [one.json() for one in session.measurements],
        "absent": [{"what": what, "reason": reason} for what, reason in session.absent.items()],
        "sweeps": [one.json() for one in session.sweeps],
        "figures": [one.json() for one in session.figures],
        "distributions": session.distributions,
        "goals": [] if options.quick else goals.check(session, simulated),
    }


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line on stderr saying what is measured, drawn between measurements only."""
    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        auto_refresh=False,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("starting", total=None)

        def step(what: str) -> None:
            progress.update(task, description=what, refresh=True)

        yield step


def save(result: dict[str, Any], folder: Path) -> Path:
    """Write a result under a name of its own."""
    stem = file_stem(result)
    number = 1
    while True:
        path = folder / f"{stem}{'' if number == 1 else f'-{number}'}.json"
        try:
            with path.open("x") as file:
                file.write(as_text(result))
        except FileExistsError:
            number += 1
        else:
            return path


def as_text(result: dict[str, Any]) -> str:
    """JSON with every list of figures on one line."""
    text = json.dumps(result, indent=1, allow_nan=False)
    return re.sub(r"\[[-+\d.,\senul]+\]", lambda found: " ".join(found[0].split()), text) + "\n"


def file_stem(result: dict[str, Any]) -> str:
    """GPU, how many, date and what was measured: ``h200-x2-2026-11-21-nccl``."""
    header = result["header"]
    name = header["gpu"].lower().removeprefix("nvidia ")
    words = re.sub(r"[^a-z0-9]+", "-", name).strip("-")
    if header["simulated"]:
        words = "simulated-gpu"
    if (gpus := header.get("gpus", 1)) > 1:
        words += f"-x{gpus}"
    everything = result["modules"] == list(MODULES)
    parts = [words, header["date"][:10], *(["all"] if everything else result["modules"])]
    return "-".join([*parts, *(["quick"] if result["quick"] else [])])


def show(result: dict[str, Any], path: Path) -> None:
    """Print the tables, the goals last."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    header = result["header"]
    console.print(
        f"{header['gpu']}, driver {header['nvidia_driver']}, backend {header['backend']}, "
        f"{header['cpu']}, Python {header['python']}",
        soft_wrap=True,
    )
    for table in tables(result):
        console.print(_rich(table))
    for one in result["absent"]:
        console.print(f"absent: {one['what']}: {one['reason']}", markup=False, soft_wrap=True)
    if result["note"]:
        console.print(result["note"], style="yellow", soft_wrap=True)
    wrong = wrong_data(result)
    points = sum(len(one["rounds"]) for one in result["sweeps"])
    console.print(
        f"{len(result['measurements'])} measurements and {points} points in {path}, "
        f"after {result['duration_s']:.0f} s",
        soft_wrap=True,
    )
    for name in wrong:
        console.print(f"WRONG DATA: {name}", style="red", markup=False, soft_wrap=True)


def _rich(table: Table) -> RichTable:
    drawn = RichTable(title=table.title, title_justify="left")
    for number, column in enumerate(table.columns):
        drawn.add_column(column, justify="right" if number else "left")
    for row in table.rows:
        drawn.add_row(*row)
    return drawn


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 if a module failed or anything moved wrong data, 2 for wrong usage."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"--output {options.output}: {error.strerror}", file=sys.stderr)
        return 2
    if not os.access(options.output, os.W_OK | os.X_OK):
        print(f"--output {options.output}: nothing may be written there", file=sys.stderr)
        return 2
    result = measure(options)
    path = save(result, options.output)
    show(result, path)
    if not options.quick:
        plots.draw_if_possible(result, path)
        with suppress(NotPublishable):
            tables_path = path.with_suffix(".md")
            tables_path.write_text(page(result, path, tables_path))
    failed = any(one["what"] in MODULES for one in result["absent"])
    return int(failed or bool(wrong_data(result)))


if __name__ == "__main__":
    sys.exit(main())
