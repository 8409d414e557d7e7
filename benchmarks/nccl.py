"""NCCL on two GPUs over sockets, with GDRCopy and without: is it right, is it used, how fast?

NCCL is the one that torch brings. It is told to use its socket network alone, and GDRCopy as it
finds it: ``libgdrapi.so`` in ``--library DIR``.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import machine
from gdrpy import cuda
from harness import Check, Session
from nccl_pair import RankFailed
from nccl_trial import ENVIRONMENTS, MODULE, Trial
from results import add_arguments, result, save, show
from tables import wrong_data

SCRIPT = "benchmarks/nccl.py"

#: Seconds for each size that is timed.
SECONDS = 2.0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; wrong usage ends with exit status 2."""
    parser = argparse.ArgumentParser(prog=SCRIPT, description=__doc__)
    parser.add_argument(
        "--library", dest="folder", metavar="DIR", type=Path, required=True, help="libgdrapi.so's"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each size timed")
    add_arguments(parser)
    options = parser.parse_args(arguments)
    if not 0 < options.seconds <= 20:
        parser.error("--seconds must be more than 0 and at most 20")
    options.folder = options.folder.resolve()
    if not (options.folder / "libgdrapi.so").exists():
        parser.error(f"--library {options.folder.name}: no libgdrapi.so there, which NCCL loads")
    return options


def measuring_arguments(options: argparse.Namespace) -> list[str]:
    """The arguments that affect the figures, without this machine's folders."""
    arguments = ["--library", options.folder.name]
    if options.seconds != SECONDS:
        arguments += ["--seconds", f"{options.seconds:g}"]
    return arguments


def why_not() -> str | None:
    """Why this machine cannot measure it, or None."""
    count = 0 if cuda.simulated() else cuda.device_count()
    if count < 2:
        return f"needs two GPUs, and this machine has {count or 'none'}"
    if importlib.util.find_spec("torch") is None:
        return "needs torch, which brings NCCL, and it is not installed"
    return None


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The result as plain values."""
    header = machine.describe(measuring_arguments(options), options.commit, SCRIPT)
    session = Session(options.seconds, False, lambda what: print(what, file=sys.stderr, flush=True))
    with tempfile.TemporaryDirectory(prefix="gdrpy-nccl-") as folder:
        trial = Trial(options.folder, Path(folder))
        try:
            trial.all(session)
        except RankFailed as error:
            trial.checks.append(Check("every rank answers", False, str(error)))
    header |= {"gpus": 2, "nccl": trial.versions.get("nccl")}
    return result(
        session,
        header,
        [MODULE],
        {MODULE: session.seconds_since_begun()},
        environments=ENVIRONMENTS,
        logs=trial.logs,
        checks=[asdict(one) for one in trial.checks],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 if a check failed, 2 for wrong usage or if it cannot run."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if reason := why_not():
        print(f"{SCRIPT}: {reason}", file=sys.stderr)
        return 2
    measured = measure(options)
    show(measured, save(measured, options.output))
    return int(bool(wrong_data(measured)) or not all(one["passed"] for one in measured["checks"]))


if __name__ == "__main__":
    sys.exit(main())
