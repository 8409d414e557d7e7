"""A result of the benchmarks: its fields, its file, and its tables."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from harness import Session
from table import Table
from tables import tables, wrong_data

RESULTS = Path(__file__).resolve().parent / "results"

#: Raised when a field of the result changes its meaning.
FORMAT = 2

SIMULATED_NOTE = "measured on a simulated GPU: its figures say nothing about hardware"

_PLAIN_WIDTH = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--output`` and ``--commit``, which every script takes."""
    parser.add_argument("--output", metavar="DIR", type=Path, default=RESULTS)
    parser.add_argument("--commit", help="the commit that is measured, if git cannot tell")


def result(
    session: Session,
    header: dict[str, Any],
    modules: Sequence[str],
    durations: dict[str, float],
    **more: Any,
) -> dict[str, Any]:
    """The result of a session as plain values; ``more`` fields replace or follow the others."""
    return {
        "format": FORMAT,
        "note": SIMULATED_NOTE if header["simulated"] else None,
        "header": header,
        "modules": list(modules),
        "quick": session.quick,
        "seconds_per_comparison": session.seconds or None,
        "duration_s": session.seconds_since_begun(),
        "durations_s": durations,
        "measurements": [one.json() for one in session.measurements],
        "absent": [{"what": what, "reason": reason} for what, reason in session.absent.items()],
        "sweeps": [one.json() for one in session.sweeps],
        "figures": [one.json() for one in session.figures],
        "distributions": session.distributions,
        "goals": [],
        **more,
    }


def save(result: dict[str, Any], folder: Path, everything: Sequence[str] = ()) -> Path:
    """Write a result under a new name."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = file_stem(result, everything)
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


def file_stem(result: dict[str, Any], everything: Sequence[str] = ()) -> str:
    """GPU, number of GPUs, date and modules: ``h200-x2-2026-11-21-nccl``, or ``...-all``."""
    header = result["header"]
    name = header["gpu"].lower().removeprefix("nvidia ")
    words = re.sub(r"[^a-z0-9]+", "-", name).strip("-")
    if header["simulated"]:
        words = "simulated-gpu"
    if (gpus := header.get("gpus", 1)) > 1:
        words += f"-x{gpus}"
    modules = ["all"] if result["modules"] == list(everything) else result["modules"]
    quick = ["quick"] if result["quick"] else []
    return "-".join([words, header["date"][:10], *modules, *quick])


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
    points = sum(len(one["rounds"]) for one in result["sweeps"])
    console.print(
        f"{len(result['measurements'])} measurements and {points} points in {path}, "
        f"after {result['duration_s']:.0f} s",
        soft_wrap=True,
    )
    for name in wrong_data(result):
        console.print(f"WRONG DATA: {name}", style="red", markup=False, soft_wrap=True)


def _rich(table: Table) -> RichTable:
    drawn = RichTable(title=table.title, title_justify="left")
    for number, column in enumerate(table.columns):
        drawn.add_column(column, justify="right" if number else "left")
    for row in table.rows:
        drawn.add_row(*row)
    return drawn
