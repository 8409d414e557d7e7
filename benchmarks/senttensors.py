"""How long tensors take to another process and its answer back, by torch's reducers and gdrpy's.

Each way sends tensors through the same pipe to the same process, in turns. "held" is with another
tensor of the same memory in the receiver, "first" without one, so that the memory is opened. Every
tensor's first element is compared there. On the simulated GPU torch's own are host tensors in
shared memory, sent by file descriptor.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from statistics import median
from time import perf_counter
from typing import Any

import machine
from results import FORMAT, add_arguments, save

#: Elements of each tensor, of 4 bytes.
_LENGTH = 1 << 18
_MANY = 100


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/senttensors.py", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    rows = list(measure(options.rounds))
    for row in rows:
        print(
            f"{row['way']:24}{row['tensors']:5}{row['state']:>7}"
            f"{row['median_us']:10.0f}{row['p95_us']:10.0f} us"
        )
    result = {
        "format": FORMAT,
        "header": machine.describe((), options.commit)
        | {"command": f"python benchmarks/senttensors.py --rounds {options.rounds}"},
        "modules": ["senttensors"],
        "quick": False,
        "tensor_bytes": 4 * _LENGTH,
        "senttensors": rows,
    }
    print(save(result, options.output))
    return 0


def measure(rounds: int) -> Iterator[dict[str, Any]]:
    """The times of every way, state and number of tensors, in microseconds."""
    import torch
    from torch import multiprocessing

    import gdrpy.torch
    from gdrpy.broker import temporary

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_receive, args=(theirs,))
    process.start()
    with ExitStack() as stack:
        path = stack.enter_context(temporary())
        broker = stack.enter_context(gdrpy.connect(path))
        stack.enter_context(gdrpy.torch.install_reducers())
        size = 4 * _LENGTH * (_MANY + 20)
        makers = {
            "torch": _own(torch),
            "gdrpy, a process's": _in_region(torch, gdrpy.alloc(size)),
            "gdrpy, a broker's": _in_region(torch, broker.allocate(None, size)),
        }
        sets = {way: [make(number) for number in range(_MANY)] for way, make in makers.items()}
        others = {way: make(_MANY) for way, make in makers.items()}
        for state in "first", "held":
            for count in 1, _MANY:
                times: dict[str, list[float]] = {way: [] for way in sets}
                turns = max(10, rounds // count)
                if state == "held":
                    _ask(ours, "keep", list(others.values()))
                for turn in range(-3, turns):
                    for way in random.sample(list(sets), len(sets)):
                        taken = _ask(ours, "look", sets[way][:count])
                        times[way] += [taken] * (turn >= 0)
                _ask(ours, "drop", [])
                for way, taken in times.items():
                    yield {
                        "way": way,
                        "tensors": count,
                        "state": state,
                        "median_us": median(taken),
                        "p95_us": sorted(taken)[int(0.95 * len(taken))],
                        "samples": len(taken),
                    }
        ours.send(None)
        process.join()
        del makers, sets, others


def _own(torch: Any) -> Callable[[int], Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def make(number: int) -> Any:
        tensor = torch.full((_LENGTH,), float(number), device=device)
        return tensor.share_memory_()

    return make


def _in_region(torch: Any, region: Any) -> Callable[[int], Any]:
    def make(number: int) -> Any:
        tensor = torch.from_dlpack(region.array(_LENGTH, "F32", 4 * _LENGTH * number))
        return tensor.fill_(number)

    return make


def _ask(connection: Any, order: str, tensors: list[Any]) -> float:
    """Send tensors, and wait for the answer; the microseconds that it took."""
    began = perf_counter()
    connection.send((order, tensors))
    connection.recv()
    taken = (perf_counter() - began) * 1e6
    if order == "look":
        connection.send(("compare", tensors))
        if connection.recv() != [float(number) for number in range(len(tensors))]:
            raise SystemExit("benchmarks/senttensors.py: a tensor arrived with other elements")
    return taken


def _receive(connection: Any) -> None:
    kept: list[Any] = []
    while (message := connection.recv()) is not None:
        order, tensors = message
        answer = None
        if order == "keep":
            kept[:] = tensors
        elif order == "drop":
            kept.clear()
        elif order == "compare":
            answer = [float(tensor[0]) for tensor in tensors]
        del message, tensors
        connection.send(answer)


if __name__ == "__main__":
    sys.exit(main())
