"""Tokens a second of vLLM with stored inputs of steps (GDRPY_STORE_INPUTS=1), and with its copies.

Each engine is a fresh process; those with stores and with copies take turns, with vLLM's
asynchronous scheduling and without. All answers must be equal. Before that, a buffer is filled and
read by a graph at random moments: each reading must be right, and some wrong when the state of the
stream is ignored.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from time import perf_counter
from typing import Any

import engines_worker
import machine
import vllminputs_worker
from engines import ENVIRONMENT
from gdrpy.cli.measure.timing import Samples
from results import FORMAT, add_arguments, save

BATCHES = (1, 32)
COPIES, STORES = "copies", "stores"
#: The V1 runner, which has the buffers; vLLM 0.25.1 takes the newer one for most models.
_RUNNER, _NEWER = ({"VLLM_USE_V2_MODEL_RUNNER": which} for which in "01")
_WAYS = {
    COPIES: _RUNNER | {"GDRPY_STORE_INPUTS": "0"},
    STORES: _RUNNER | {"GDRPY_STORE_INPUTS": "1"},
}
_SCHEDULING = {"asynchronous": True, "synchronous": False}
#: An engine without such buffers, for comparison.
_NEWER_RUNNER = "newer runner"
_PATIENCE = 100


class Silent(Exception):
    """A process ended, or did not answer in time."""


class Trial:
    """The answers of the engines, and their tokens a second."""

    def __init__(self, folder: Path, model: str, length: int, times: int) -> None:
        self.rates: dict[str, list[float]] = {}
        #: Buffers that were stored and queued a step, of each engine.
        self.copies: dict[str, list[float]] = {}
        self.figures: dict[str, float] = {}
        self.checks: dict[str, bool] = {}
        self._model, self._length, self._times = model, length, times
        self._log = folder / "engines.log"
        self._log.touch()
        self._right: dict[tuple[str, int], list[str]] = {}
        # The process that forks has no other way to find the module.
        os.environ |= ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self._context = ForkServerContext()
        self._context.set_forkserver_preload([vllminputs_worker.__name__])

    def _ask(self, what: Any, *arguments: Any) -> Any:
        """Ask a fresh process, and return its answer. Raises Silent."""
        mine, its = self._context.Pipe()
        process = self._context.Process(
            target=vllminputs_worker.answer, args=(its, str(self._log), what, *arguments)
        )
        process.start()
        its.close()
        try:
            if not mine.poll(_PATIENCE):
                raise Silent(f"no answer in {_PATIENCE} s")
            return mine.recv()
        except EOFError:
            process.join()
            log = "\n".join(self._log.read_text().splitlines()[-20:])
            raise Silent(f"a process ended, status {process.exitcode}:\n{log}") from None
        finally:
            process.kill()
            process.join()
            mine.close()

    def prove(self) -> None:
        """Fill a buffer that a graph reads, at random moments, and read it."""
        found = self._ask(vllminputs_worker.prove, dict(_WAYS[STORES]))
        for what, value in found.items():
            self._note(f"buffer: {what}", value)
        self._check("buffer: no reading is wrong", found["wrong"] == 0)
        self._check("buffer: was stored and queued", min(found["stored"], found["queued"]) > 0)
        self._check("buffer: readings are wrong if it is always stored", found["wrong, always"] > 0)

    def engine(self, way: str, scheduling: str) -> None:
        """Measure a fresh engine of a way."""
        options = {
            "model": self._model,
            "load_format": "auto",
            "gpu_memory_utilization": 0.2,
            "max_num_seqs": max(BATCHES),
            "async_scheduling": _SCHEDULING[scheduling],
        }
        environment = _WAYS.get(way, _NEWER)
        found = self._ask(
            vllminputs_worker.measure, environment, options, BATCHES, self._length, self._times
        )
        title = f"{way}, {scheduling}"
        for batch, one in found.items():
            print(f"{title}, batch {batch}: {one}", flush=True)
            self._keep(f"{title}, batch {batch}", batch, one)
            if way == _NEWER_RUNNER:
                continue
            # That of the first engine with copies or stores.
            right = self._right.setdefault((scheduling, batch), one["digests"])
            self._check(f"{title}, batch {batch}: same tokens", one["digests"] == right)
            if way == COPIES:
                self._check(f"{title}, batch {batch}: stored nothing", one["stored"] == 0)
            elif not _SCHEDULING[scheduling]:  # else the GPU may have work all the time
                self._check(f"{title}, batch {batch}: stored inputs", one["stored"] > 0)

    def _keep(self, title: str, batch: int, one: dict[str, Any]) -> None:
        rate = Samples([batch * self._length / seconds for seconds in one["seconds"]]).median
        self.rates.setdefault(title, []).append(rate)
        self._check(f"{title}: same tokens each time", len(one["digests"]) == 1)
        for which in ("stored", "queued"):
            copies = self.copies.setdefault(f"{title}: {which} a step", [])
            copies.append(one[which] / self._length / self._times)

    def _check(self, what: str, right: bool) -> None:
        self.checks[what] = self.checks.get(what, True) and right

    def conclude(self) -> None:
        """Medians, and those by stores relative to those by copies."""
        for title, rates in self.rates.items():
            self._note(f"{title}: tokens/s", Samples(rates).median)
        for what, counts in self.copies.items():
            self._note(what, Samples(counts).median)
        for title, rates in self.rates.items():
            others = self.rates.get(title.replace(STORES, COPIES, 1), rates)
            if others is not rates:
                what = f"{title}: tokens/s relative to {COPIES}"
                self._note(what, Samples(rates).median / Samples(others).median)

    def _note(self, what: str, value: float) -> None:
        self.figures[what] = value
        print(f"{what}: {value:.5g}", flush=True)


def _turns(rounds: int) -> list[tuple[str, str]]:
    """The engines in their order: one way first, then the other."""
    order = []
    for number in range(rounds):
        for scheduling in _SCHEDULING:
            for way in (COPIES, STORES) if number % 2 == 0 else (STORES, COPIES):
                order.append((way, scheduling))
        if number == 0:
            order.append((_NEWER_RUNNER, "asynchronous"))
    return order


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/vllminputs.py", description=__doc__)
    sizes = engines_worker.SIZES
    parser.add_argument("--size", default="small", choices=sizes, help="of the model (small)")
    parser.add_argument("--rounds", type=int, default=2, help="of all engines (2)")
    parser.add_argument("--length", type=int, default=400, help="tokens of an answer (400)")
    parser.add_argument("--times", type=int, default=3, help="that each engine answers (3)")
    parser.add_argument(
        "--seconds", type=float, default=160, help="after which no further engine starts (160)"
    )
    add_arguments(parser)
    options = parser.parse_args(arguments)
    began = perf_counter()
    # The folder is in memory: the disk is not what is measured.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        model = f"{folder}/model"
        worker = [sys.executable, engines_worker.__file__]
        subprocess.run([*worker, "make", model, "1", options.size], check=True)
        trial = Trial(Path(folder), model, options.length, options.times)
        try:
            trial.prove()
            for way, scheduling in _turns(options.rounds):
                if perf_counter() - began > options.seconds:
                    print("the time is over", flush=True)
                    break
                trial.engine(way, scheduling)
            trial.conclude()
        except Silent as error:
            trial.checks["every process answers"] = False
            print(error, flush=True)
    chosen = " ".join(
        f"--{name} {getattr(options, name):g}" for name in ("rounds", "length", "times", "seconds")
    )
    result = {
        "format": FORMAT,
        "header": machine.describe((), options.commit)
        | {"command": f"python benchmarks/vllminputs.py --size {options.size} {chosen}"},
        "modules": ["vllminputs"],
        "quick": False,
        "size": options.size,
        "rates": trial.rates,
        "figures": [{"what": what, "value": value} for what, value in trial.figures.items()],
        "checks": trial.checks,
    }
    print(save(result, options.output))
    for what, right in trial.checks.items():
        if not right:
            print(f"WRONG: {what}", flush=True)
    return 0 if all(trial.checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
