"""A torch model whose weights lie in one region of the broker, used by four processes at a time.

Is GPU memory taken once? Do all answer right while newer weights are published, when one of them is
killed, and when the broker is? Needs torch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import machine
from gdrpy import cuda
from gpumemory import NoNvml, nvml
from harness import Check, Session
from results import add_arguments, result, save, show
from sharedweights_process import Silent
from sharedweights_trial import MODULE, Trial

SCRIPT = "benchmarks/sharedweights.py"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog=SCRIPT, description=__doc__)
    parser.add_argument("--small", action="store_true", help="a small model: does it run at all?")
    add_arguments(parser)
    return parser.parse_args(arguments)


def why_not(small: bool) -> str | None:
    """Why this machine cannot measure it, or None."""
    if cuda.simulated():
        return None if small else "needs a GPU; --small runs on the simulated one"
    try:
        with nvml():
            return None
    except NoNvml as error:
        return f"needs NVML, to see how much memory is in use: {error}"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The result as plain values."""
    header = machine.describe(["--small"] * options.small, options.commit, SCRIPT)
    session = Session(0, options.small, lambda what: print(what, file=sys.stderr, flush=True))
    with tempfile.TemporaryDirectory(prefix="gdrpy-weights-") as folder, ExitStack() as undo:
        trial = Trial(session, f"{folder}/broker.sock", options.small, undo)
        try:
            trial.all()
        except Silent as error:
            trial.checks.append(Check("every process answers", False, str(error)))
    trial.mark_verified()
    durations = {MODULE: session.seconds_since_begun()}
    checks = [asdict(one) for one in trial.checks]
    return result(session, header, [MODULE], durations, checks=checks)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 if a check failed, 2 for wrong usage or if it cannot run."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if reason := why_not(options.small):
        print(f"{SCRIPT}: {reason}", file=sys.stderr)
        return 2
    measured = measure(options)
    show(measured, save(measured, options.output))
    return int(not all(one["passed"] for one in measured["checks"]))


if __name__ == "__main__":
    sys.exit(main())
