"""How long tensors take to give their GPU memory back and to come back, beside torch_memory_saver.

Each saver pauses and resumes the same tensors in rounds, in a process of its own, with and without
a backup in host memory. Every byte is compared after the last resume with a backup.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import machine
from results import FORMAT, add_arguments, save

SAVERS = ("gdrpy", "torch_memory_saver")
_TENSOR = 128 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/memorysaver.py", description=__doc__)
    parser.add_argument("--gib", type=int, default=8, help="of tensors of 128 MiB (8)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--saver", choices=SAVERS, help=argparse.SUPPRESS)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    if options.saver:
        print(json.dumps(measure(options.saver, options.gib << 30, options.rounds)), flush=True)
        os._exit(0)  # torch_memory_saver ends a process with 1 if it frees tensors at its exit
    rows = []
    for saver in SAVERS:
        program = [sys.executable, __file__, "--saver", saver]
        sizes = ["--gib", str(options.gib), "--rounds", str(options.rounds)]
        done = subprocess.run([*program, *sizes], stdout=subprocess.PIPE, text=True, check=True)
        rows += json.loads(done.stdout)
    for row in rows:
        print(
            f"{row['saver']:20}{row['what']:26}{row['first_ms']:10.1f}{row['median_ms']:10.1f} ms"
        )
    result = {
        "format": FORMAT,
        "header": machine.describe((), options.commit)
        | {"command": f"python benchmarks/memorysaver.py --gib {options.gib}"},
        "modules": ["memorysaver"],
        "quick": False,
        "tensor_bytes": options.gib << 30,
        "memorysaver": rows,
    }
    print(save(result, options.output))
    return 0


def measure(name: str, nbytes: int, rounds: int) -> list[dict[str, Any]]:
    """Time one saver, in milliseconds: its first call, and the median of the others."""
    import torch

    saver = _saver(name)
    times: dict[str, list[float]] = {}
    with saver.region("kept", enable_cpu_backup=True):
        tensors = [_tensor(torch, number) for number in range(nbytes // _TENSOR)]
    for _ in range(rounds):
        _take(times, "pause, with backup", lambda: saver.pause("kept"))
        _take(times, "resume, with backup", lambda: saver.resume("kept"))
    for number, tensor in enumerate(tensors):
        if not torch.equal(tensor, _tensor(torch, number)):
            raise SystemExit(f"benchmarks/memorysaver.py: wrong bytes after {name}'s resume")
    with saver.region("dropped"):
        tensors += [_tensor(torch, number) for number in range(nbytes // _TENSOR)]
    for _ in range(rounds):
        _take(times, "pause, without", lambda: saver.pause("dropped"))
        _take(times, "resume, without", lambda: saver.resume("dropped"))
    return [
        {
            "saver": name,
            "what": what,
            "ms": taken,
            "first_ms": taken[0],
            "median_ms": median(taken[1:]),
        }
        for what, taken in times.items()
    ]


def _saver(name: str) -> Any:
    if name == "gdrpy":
        from gdrpy.torch.memory_saver import torch_memory_saver as saver
    else:
        from torch_memory_saver import torch_memory_saver as saver

        saver.hook_mode = "torch"
    return saver


def _tensor(torch: Any, number: int) -> Any:
    tensor = torch.arange(_TENSOR // 4, dtype=torch.int32, device="cuda")
    return tensor.add_(number)


def _take(times: dict[str, list[float]], what: str, act: Callable[[], object]) -> None:
    import torch

    torch.cuda.synchronize()
    began = perf_counter()
    act()
    torch.cuda.synchronize()
    times.setdefault(what, []).append((perf_counter() - began) * 1e3)


if __name__ == "__main__":
    sys.exit(main())
