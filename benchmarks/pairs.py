"""Compares two checkouts of gdrpy: the time of each call in one, over its time in the other.

``pairs.py OLD NEW`` takes folders with the C parts built. Several processes of each take turns on
one core, each with a broker of its own; an older checkout must have the calls of pairs_worker.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, Self

import machine
from results import FORMAT, add_arguments, save

_WORKER = Path(__file__).with_name("pairs_worker.py")
#: Processes of each checkout: where its memory lies makes one some percent slower than the next.
_EACH = 4
#: How long a batch is to take, and the fewest calls of one.
_BATCH_NS = 2e6
_FEWEST = 5
#: Calls that are tried first: those of a short batch, then more of quick ones.
_TRIED = (4, 64)


class Worker:
    """A process that times the calls of a checkout."""

    def __init__(self, checkout: Path, core: int, folder: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER), str(checkout), str(core), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        self.calls: list[str] = self._answer()

    def time(self, call: str, count: int) -> int:
        """What so many calls take, in ns."""
        print(json.dumps([call, count]), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process ended: {self._process.args}")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/pairs.py", description=__doc__)
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("--old-commit", required=True, metavar="ID", help="the commit of OLD")
    parser.add_argument("--rounds", type=int, default=30, help="turns of each process (30)")
    add_arguments(parser)
    options = parser.parse_args(arguments)

    core = max(os.sched_getaffinity(0))
    with ExitStack() as stack:

        def workers(checkout: Path) -> list[Worker]:
            folders = [tempfile.TemporaryDirectory(prefix="gdrpy-pairs-") for _ in range(_EACH)]
            return [
                stack.enter_context(Worker(checkout.resolve(), core, stack.enter_context(folder)))
                for folder in folders
            ]

        old, new = workers(options.old), workers(options.new)
        pairs = []
        print(f"{'':31}{'old, us':>10}{'new, us':>10}{'new/old':>9}")
        for call in new[0].calls:
            pairs.append(one := pair(call, old, new, options.rounds))
            times = "".join(f"{median(chain(*one[side])):10.2f}" for side in ("old_us", "new_us"))
            print(f"{call:31}{times}{one['ratio']:9.3f}", flush=True)
    result = {
        "format": FORMAT,
        "header": machine.describe((), options.commit)
        | {"command": "python benchmarks/pairs.py OLD NEW", "old_commit": options.old_commit},
        "modules": ["pairs"],
        "quick": False,
        "pairs": pairs,
    }
    print(save(result, options.output))
    return 0


def pair(call: str, old: list[Worker], new: list[Worker], rounds: int) -> dict[str, Any]:
    """Times of a call in us, a list for each process, and the median ratio of the rounds."""
    both = [*old, *new]
    count = 0
    for tried in _TRIED:
        if count < tried:
            taken = min(worker.time(call, tried) for worker in both)
            count = max(_FEWEST, int(_BATCH_NS * tried / taken))
    times: list[list[float]] = [[] for _ in both]
    for _ in range(rounds):
        for number in random.sample(range(len(both)), len(both)):
            times[number].append(both[number].time(call, count) / count / 1e3)
    ratios = [
        sum(samples[len(old) :]) / sum(samples[: len(old)]) for samples in zip(*times, strict=True)
    ]
    return {
        "call": call,
        "calls_per_sample": count,
        "old_us": times[: len(old)],
        "new_us": times[len(old) :],
        "ratio": median(ratios),
    }


if __name__ == "__main__":
    sys.exit(main())
