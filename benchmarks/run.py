"""Runs the benchmarks on this machine's GPU, and keeps the result as one JSON file."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import attach
import broker
import channel
import copyengine
import detach
import engine
import goals
import inbox
import latency
import libgdrapi
import link
import machine
import pingpong
import plots
import queued
import rivalrings
import scatter
import stepinputs
import threads
import transfers
from gdrpy import cuda
from harness import Session
from page import page
from publishing import NotPublishable
from results import add_arguments, result, save, show
from tables import wrong_data

#: Modules that run kernels come last: a failing kernel destroys the context.
_ALL = (
    latency,
    engine,
    threads,
    transfers,
    copyengine,
    scatter,
    attach,
    detach,
    libgdrapi,
    broker,
    pingpong,
    queued,
    channel,
    inbox,
    link,
    rivalrings,
    stepinputs,
)
MODULES: dict[str, Callable[[Session], None]] = {one.MODULE: one.run for one in _ALL}
SECONDS = 1.25
QUICK_SECONDS = 0.02


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; wrong usage ends with exit status 2."""
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description=__doc__)
    parser.add_argument(
        "--only", metavar="LIST", type=_modules, default=list(MODULES), help=", ".join(MODULES)
    )
    parser.add_argument("--quick", action="store_true", help="a few samples of fewer sizes")
    parser.add_argument(
        "--seconds", type=_seconds, help=f"for each comparison, {SECONDS} by default"
    )
    parser.add_argument(
        "--kills", metavar="N", type=_count, help="of copyengine; by default 1000, if 100 s allow"
    )
    parser.add_argument(
        "--mscclpp", metavar="SOURCES", type=_sources, help=f"of rivalrings: {rivalrings.SOURCES}"
    )
    add_arguments(parser)
    return parser.parse_args(arguments)


def _modules(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in MODULES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not in {', '.join(MODULES)}")
    return [name for name in MODULES if name in chosen]


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 60:
        raise argparse.ArgumentTypeError("must be more than 0 and at most 60")
    return value


def _sources(text: str) -> Path:
    path = Path(text).absolute()
    if missing := [one for one in rivalrings.NEEDED if not (path / one).exists()]:
        raise argparse.ArgumentTypeError(f"no {', '.join(missing)} in {path.name}")
    return path


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 at least")
    return value


def measuring_arguments(options: argparse.Namespace) -> list[str]:
    """The arguments that affect the figures."""
    arguments = []
    if options.only != list(MODULES):
        arguments += ["--only", ",".join(options.only)]
    if options.quick:
        arguments.append("--quick")
    if options.seconds is not None:
        arguments += ["--seconds", f"{options.seconds:g}"]
    if options.kills is not None:
        arguments += ["--kills", str(options.kills)]
    if options.mscclpp is not None:
        arguments += ["--mscclpp", options.mscclpp.name]
    return arguments


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the chosen modules; the result as plain values."""
    header = machine.describe(measuring_arguments(options), options.commit)
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    with _progress() as step, cuda.context(0):
        session = Session(seconds, options.quick, step, options.kills, options.mscclpp)
        durations = {}
        for name in options.only:
            begun = time.monotonic()
            try:
                MODULES[name](session)
            except Exception as error:  # the figures of the other modules must not be lost
                traceback.print_exc()
                session.absent[name] = f"{type(error).__name__}: {error}"
            durations[name] = round(time.monotonic() - begun, 1)
    checked = [] if options.quick else goals.check(session, header["simulated"])
    return result(session, header, options.only, durations, goals=checked)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line on stderr with the current measurement, drawn only between measurements."""
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
    measured = measure(options)
    path = save(measured, options.output, list(MODULES))
    show(measured, path)
    if not options.quick:
        plots.draw_if_possible(measured, path)
        with suppress(NotPublishable):
            tables_path = path.with_suffix(".md")
            tables_path.write_text(page(measured, path, tables_path))
    failed = any(one["what"] in MODULES for one in measured["absent"])
    return int(failed or bool(wrong_data(measured)))


if __name__ == "__main__":
    sys.exit(main())
