"""One process of the benchmark of shared weights: carries out the lines of its standard input.

``sharedweights_worker.py SOCKET WIDTH``; a line is a JSON list of an action and its arguments, the
answer one line of JSON.
"""

from __future__ import annotations

import hashlib
import json
import select
import sys
import time
from collections import Counter
from typing import Any

import torch

import gdrpy
from gdrpy import cuda
from sharedweights_model import SMALL, Model, answer, inputs, over, trained

NAME = "weights"


class Worker:
    """A connection to the broker, a CUDA context, and no weights."""

    def __init__(self, socket: str, width: int) -> None:
        self._broker = gdrpy.connect(socket, reconnect=30.0)
        self._width = width
        self._device = torch.device("cpu" if cuda.simulated() else "cuda:0")
        torch.set_num_threads(1)
        self._inputs = inputs(width, self._device)
        answer(trained(SMALL, 0, self._device), inputs(SMALL, self._device))
        self._let_go_of_spare_memory()
        self._region: gdrpy.BrokerRegion | None = None
        self._model: Model | None = None

    def attach(self) -> dict[str, Any]:
        """Attach to the weights of the newest version."""
        self.leave()
        start = time.perf_counter_ns()
        self._region = self._broker.get(NAME, cpu=False, readonly=True)
        views = {name: torch.from_dlpack(one) for name, one in self._region.tensors().items()}
        self._model = over(self._width, views)
        return {"version": self._region.version, "ns": time.perf_counter_ns() - start}

    def copy(self) -> dict[str, Any]:
        """Have a copy of them for itself, as a process does that loads a file."""
        found = self.attach()
        assert self._model is not None
        weights = {name: one.clone() for name, one in self._model.state_dict().items()}
        self.leave()
        self._model = over(self._width, weights)
        return found

    def leave(self) -> None:
        """Have no weights."""
        self._model = None
        if self._region:
            self._region.close()
            self._region = None
        self._let_go_of_spare_memory()

    def forward(self, count: int) -> list[str]:
        """Run the model ``count`` times; returns the distinct answers."""
        assert self._model is not None
        return sorted({answer(self._model, self._inputs) for _ in range(count)})

    def contents(self) -> str:
        """The digest of all bytes of the region."""
        assert self._region is not None
        return hashlib.sha256(self._region.read()).hexdigest()

    def publish(self, seed: int) -> dict[str, Any]:
        """Publish the weights of a new model; returns its answer."""
        model = trained(self._width, seed, self._device)
        expected = answer(model, self._inputs)
        weights = model.state_dict()
        start = time.perf_counter_ns()
        with self._broker.put_tensors(NAME, weights, cpu=False) as region:
            taken = time.perf_counter_ns() - start
            version = region.version
        del model, weights
        self._let_go_of_spare_memory()
        return {"version": version, "answer": expected, "ns": taken}

    def serve(self) -> dict[str, Any]:
        """Run the model until the next line of input, and switch to newer versions as they come.

        It says when it has begun. The answers by version with how many there were, the ns that each
        took, those of each swap, and the longest from one answer to the next.
        """
        assert self._region is not None
        answers: Counter[str] = Counter()
        forwards, swaps, longest = [], [], 0
        stopping = False
        last = time.perf_counter_ns()
        while True:
            start = time.perf_counter_ns()
            (found,) = self.forward(1)
            now = time.perf_counter_ns()
            forwards.append(now - start)
            longest, last = max(longest, now - last), now
            answers[f"{self._region.version} {found}"] += 1
            if len(forwards) == 1:
                _say("serving")
            if self._region.stale:
                start = time.perf_counter_ns()
                self.attach()
                swaps.append(time.perf_counter_ns() - start)
            elif stopping:
                return {
                    "answers": answers,
                    "forwards": forwards,
                    "swaps": swaps,
                    "longest": longest,
                }
            stopping = stopping or bool(select.select([sys.stdin], [], [], 0)[0])

    def _let_go_of_spare_memory(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)


def main(socket: str, width: int) -> None:
    """Carry out the lines of standard input."""
    with torch.inference_mode():
        worker = Worker(socket, width)
        _say("ready")
        for line in sys.stdin:
            action, *arguments = json.loads(line)
            if action == "stop":  # which ended serve()
                continue
            _say(getattr(worker, action)(*arguments))
        worker.leave()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
