"""Runs in each process of the benchmark of vLLM's inputs.

They are forked from a process that has imported vLLM, which takes longer than all else.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import engines_worker

with suppress(ImportError):  # where this module is only imported
    from vllm import LLM  # noqa: F401
    from vllm.v1.worker import gpu_worker  # noqa: F401

#: Of the buffer that a graph reads: elements, fillings, cycles before the graph reads it, and
#: seconds from one filling to the next at most.
_ELEMENTS, _FILLINGS, _CYCLES, _REST = 4096, 2000, 100_000, 200e-6


def answer(
    peer: Connection, log: str, what: Callable[..., Any], environment: dict[str, str], *more: Any
) -> None:
    """Send what a function returns, in an environment. What is printed goes to the log."""
    os.environ |= environment
    with Path(log).open("a") as errors:
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    peer.send(what(*more))


def measure(
    options: dict[str, Any], batches: Sequence[int], length: int, times: int
) -> dict[int, dict[str, Any]]:
    """For each batch, an engine's answers, and the seconds and copies that they took."""
    from gdrpy.vllm import inputs

    engine = engines_worker.Engine(options)
    found = {}
    for batch in batches:
        digest = engine.tokens(batch, length)["digest"]  # a first time, not measured
        before = dict(inputs.counts)
        runs = [engine.tokens(batch, length) for _ in range(times)]
        alike = {digest, *(one["digest"] for one in runs)}
        found[batch] = {
            "digests": sorted(alike),
            "different": runs[0]["different"],
            "seconds": [one["seconds"] for one in runs],
            **{which: count - before[which] for which, count in inputs.counts.items()},
        }
    return found


def prove() -> dict[str, float]:
    """How many of a graph's readings of a buffer that is filled again and again are wrong.

    So long as a filling waits for the stream, and then with all of them stored at once.
    """
    from gdrpy.vllm import inputs

    inputs.install()
    wrong = _wrong_readings(_REST)
    found = {"wrong": wrong, "fillings": _FILLINGS, **inputs.counts}
    inputs._idle = lambda _gpu: True
    return found | {"wrong, always": _wrong_readings(0)}


def _wrong_readings(rest: float) -> int:
    import torch
    from vllm.v1.utils import CpuGpuBuffer

    gpu = torch.device("cuda", 0)
    torch.cuda.set_device(gpu)
    buffer = CpuGpuBuffer(_ELEMENTS, dtype=torch.int32, device=gpu)
    seen = torch.zeros_like(buffer.gpu)
    found = torch.zeros(_FILLINGS, 2, dtype=torch.int32, device=gpu)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.cuda._sleep(_CYCLES)
        seen.copy_(buffer.gpu)
    copied = torch.cuda.Event()
    draw = random.Random(1)
    for number in range(_FILLINGS):
        copied.synchronize()  # as vLLM does: the last copy has read the host's array
        buffer.np[:] = number
        buffer.copy_to_gpu()
        copied.record()
        graph.replay()
        torch.aminmax(seen, out=(found[number, 0], found[number, 1]))
        until = perf_counter() + draw.uniform(0, rest)
        while perf_counter() < until:
            pass
    right = torch.arange(_FILLINGS, dtype=torch.int32, device=gpu)[:, None]
    return int((found != right).any(1).sum())
