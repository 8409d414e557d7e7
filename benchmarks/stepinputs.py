"""gdrpy.StepInputs: the time from a step's inputs until its first kernel has answered.

The step is a CUDA graph of torch's, as an engine's decode step is. Its first kernel stores what it
read into page-locked memory, where the CPU waits for it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gdrpy
import gpukernels
from gdrpy import Flag, cuda
from gdrpy.cli.measure.timing import Samples, clock, undisturbed
from harness import Figure, Session

MODULE = "stepinputs"
OPERATION = "inputs known until the first kernel has answered"
BY_COPIES = "three copies from page-locked memory, graph launched"
BY_STORES = "StepInputs.store, graph launched"
BY_FLAG = "StepInputs.store, flag.set, graph queued ahead"

#: The median by stores over that by copies.
RATIO = f"{MODULE}/median by stores, relative to copies"

#: A batch of 64 sequences with 8 blocks each: 256 B, 512 B and 2 KiB.
INPUTS = {"tokens": (64, "int32"), "positions": (64, "int64"), "blocks": ((64, 8), "int32")}
_LAST = 64 * 8 - 1
#: Kernels of a step after the first one.
_KERNELS = 60
_ROUNDS, _QUICK_ROUNDS, _WARM_UP = 2000, 20, 10
#: How long the GPU rests before a step, in ns, while the CPU spins as a busy engine's does.
_REST = 30_000
_TIMEOUT = 5.0
_KERNEL = Path(__file__).with_name("stepinputs_kernel.cu")

Values = dict[str, np.ndarray[Any, Any]]


class Wrong(Exception):
    """A kernel did not see the inputs of its step."""


@dataclass(frozen=True)
class Step:
    """One way to start a step: ``begin`` is called before its inputs are known, ``go`` then."""

    values: Values
    go: Callable[[int], object]
    begin: Callable[[int], object] = lambda _number: None


def run(session: Session) -> None:
    """Measure steps into the session."""
    if cuda.simulated():
        session.absent[f"{MODULE}: {BY_STORES}"] = "the simulated GPU has no kernels"
        return
    try:
        import torch
    except ImportError:
        session.absent[f"{MODULE}: {BY_STORES}"] = "torch is not installed"
        return
    rounds = _QUICK_ROUNDS if session.quick else _ROUNDS
    samples: dict[str, list[int]] = {}
    with gdrpy.page_locked(4096) as host, torch.cuda.stream(torch.cuda.Stream()):
        reply = host.flag()
        reply.set(0)
        with _steps(torch, reply) as steps, undisturbed():
            for number in range(1, _WARM_UP + rounds + 1):
                for place, (way, step) in enumerate(steps.items(), number * len(steps)):
                    taken = _once(torch, step, reply, place)
                    if number > _WARM_UP:
                        samples.setdefault(way, []).append(taken)
    method = f"one by one, in turns; the graph has {_KERNELS} more kernels, and rests before"
    session.keep_single_times(MODULE, OPERATION, dict.fromkeys(samples, method), samples)
    copies, stores = (Samples(samples[way]).median for way in (BY_COPIES, BY_STORES))
    session.derive_figure(Figure(RATIO, stores / copies, "x"))


def _once(torch: Any, step: Step, reply: Flag, number: int) -> int:
    """Nanoseconds of one step. Raises Wrong."""
    for array in step.values.values():
        array.fill(number)
    step.begin(number)
    rested = clock() + _REST
    while clock() < rested:
        pass
    begun = clock()
    step.go(number)
    found = reply.wait(number, _TIMEOUT)
    taken = clock() - begun
    if found != number:
        raise Wrong(f"step {number} saw {found}")
    torch.cuda.current_stream().synchronize()
    return taken


@contextmanager
def _steps(torch: Any, reply: Flag) -> Iterator[dict[str, Step]]:
    """The three ways. Needs torch's current stream to be one of its own."""
    image = gpukernels.compiled(_KERNEL)
    pointer, number = ctypes.c_void_p, ctypes.c_ulonglong
    kinds = (pointer, pointer, pointer, number, pointer)
    state = torch.zeros(1 << 16, device="cuda")

    def captured(tokens: int, positions: int, blocks: int) -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            stream = torch.cuda.current_stream().cuda_stream
            answer(stream, tokens, positions, blocks, _LAST, reply.ptr)
            for _ in range(_KERNELS):
                state.mul_(1.0001)
        return graph

    with (
        gpukernels.loaded(image, b"answer", 1, *kinds) as answer,
        gdrpy.StepInputs(INPUTS) as inputs,
        gdrpy.alloc(4096) as region,
    ):
        torch.cuda.synchronize()
        dtypes = {name: getattr(torch, dtype) for name, (_, dtype) in INPUTS.items()}
        shapes = {name: shape for name, (shape, _) in INPUTS.items()}
        pinned = {
            name: torch.zeros(shapes[name], dtype=dtypes[name], pin_memory=True) for name in INPUTS
        }
        static = {name: one.to("cuda") for name, one in pinned.items()}
        usual = captured(*(one.data_ptr() for one in static.values()))
        graphs = [captured(*(one.ptr for one in each.values())) for each in inputs.sets]
        values: Values = {name: one.numpy().copy() for name, one in pinned.items()}
        bell, stream = region.flag(), torch.cuda.current_stream().cuda_stream
        bell.set(0)

        def by_copies(_number: int) -> None:
            for name, one in pinned.items():
                static[name].copy_(one, non_blocking=True)
            usual.replay()

        def by_stores(_number: int) -> None:
            graphs[inputs.store(**values)].replay()

        def queue(number: int) -> None:
            bell.stream_wait(stream, number)
            graphs[inputs.next].replay()

        def by_flag(number: int) -> None:
            inputs.store(**values)
            bell.set(number)

        yield {
            BY_COPIES: Step({name: one.numpy() for name, one in pinned.items()}, by_copies),
            BY_STORES: Step(values, by_stores),
            BY_FLAG: Step(values, by_flag, queue),
        }
        torch.cuda.synchronize()
