"""Two-engine servers whose engines and broker are killed at random moments while many threads ask.

The engines are those of ``examples/two_engines.py``, or vLLM's with the plug-in. Is every answer
right, how long does it take until the next one, and does anything stay behind? Needs torch on a
GPU.
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

import failover_vllm
import machine
from failover_front import Examples
from failover_trial import KINDS, MODULE, Trial
from gdrpy import cuda
from gpumemory import NoNvml, nvml
from harness import Check, Session
from results import add_arguments, result, save, show
from sharedweights_process import Silent

SCRIPT = "benchmarks/failover.py"

_KILLS = 200
_LINES = 40


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog=SCRIPT, description=__doc__)
    about = f"{_KILLS} by default, {2 * len(KINDS)} on the simulated GPU"
    parser.add_argument("--kills", metavar="N", type=int, help=about)
    parser.add_argument("--vllm", action="store_true", help="kill engines of vLLM")
    add_arguments(parser)
    options = parser.parse_args(arguments)
    if options.kills is not None and options.kills < 1:
        parser.error("--kills: must be 1 at least")
    return options


def why_not() -> str | None:
    """Why this machine cannot measure it, or None."""
    if cuda.simulated():
        return None
    if importlib.util.find_spec("torch") is None:
        return "needs torch"
    try:
        with nvml():
            return None
    except NoNvml as error:
        return f"needs NVML, to see how much memory is in use: {error}"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The result as plain values."""
    kills = options.kills or (2 * len(KINDS) if cuda.simulated() else _KILLS)
    given = ["--kills", str(kills)] * bool(options.kills) + ["--vllm"] * options.vllm
    engines = failover_vllm.Engines if options.vllm else Examples
    header = machine.describe(given, options.commit, SCRIPT)
    session = Session(0, False, lambda what: print(what, file=sys.stderr, flush=True), kills)
    with tempfile.TemporaryDirectory(prefix="gdrpy-failover-") as folder:
        with Trial(session, Path(folder), engines) as trial:
            try:
                trial.all()
            except Silent as error:
                trial.checks.append(Check("every process answers", False, str(error)))
        trial.keep()
        if not all(one.passed for one in trial.checks):
            print(*trial.engines.log.read_text().splitlines()[-_LINES:], sep="\n", file=sys.stderr)
    durations = {MODULE: session.seconds_since_begun()}
    checks = [asdict(one) for one in trial.checks]
    return result(session, header, [MODULE], durations, checks=checks)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 if a check failed, 2 for wrong usage or if it cannot run."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if reason := why_not():
        print(f"{SCRIPT}: {reason}", file=sys.stderr)
        return 2
    measured = measure(options)
    show(measured, save(measured, options.output))
    return int(not all(one["passed"] for one in measured["checks"]))


if __name__ == "__main__":
    sys.exit(main())
