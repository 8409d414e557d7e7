"""One rank of two that all-reduce, told by lines of JSON what to do: see nccl_pair.py.

``nccl_rank.py RANK PORT``. Each line on its standard input is a list, an action and its arguments;
each gets one line of JSON in answer.
"""

from __future__ import annotations

import itertools
import json
import re
import resource
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

#: Sums of two of these are exact in every type.
_PERIOD = 13
_MAPPED = re.compile(r"/dev/nvidia\d+|/dev/gdrdrv|/dmabuf")


def data(nbytes: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """A rank's input: small whole numbers that differ from place to place."""
    count = max(1, nbytes // dtype.itemsize)
    return ((torch.arange(count, device="cuda") + 5 * rank) % _PERIOD).to(dtype)


def check(nbytes: int, name: str) -> bool:
    """Whether one all-reduce of ``nbytes`` gives exactly the sum."""
    dtype = getattr(torch, name)
    mine = data(nbytes, dtype, dist.get_rank())
    dist.all_reduce(mine)
    return torch.equal(mine, data(nbytes, dtype, 0) + data(nbytes, dtype, 1))


def check_group(count: int) -> bool:
    """The same for many all-reduces launched as one group, too many for a kernel's arguments."""
    sizes = [4 * (1 + number % 97) for number in range(count)]
    mine = [data(nbytes, torch.int32, dist.get_rank()) for nbytes in sizes]
    dist.group.WORLD.allreduce_coalesced(mine).wait()
    return all(
        torch.equal(one, data(nbytes, torch.int32, 0) + data(nbytes, torch.int32, 1))
        for one, nbytes in zip(mine, sizes, strict=True)
    )


def timed(nbytes: int, calls: int) -> int:
    """Nanoseconds of ``calls`` all-reduces, with the other rank ready."""
    zeros = torch.zeros(max(1, nbytes // 4), device="cuda")
    dist.all_reduce(zeros)
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(calls):
        dist.all_reduce(zeros)
    torch.cuda.synchronize()
    return time.perf_counter_ns() - start


def iterate(count: int) -> int:
    """The number of all-reduces, of changing sizes, that were right in every element."""
    right = torch.zeros((), dtype=torch.int64, device="cuda")
    ones = [torch.ones(nbytes // 4, device="cuda") for nbytes in (4, 4 << 10, 64 << 10, 1 << 20)]
    for number in range(count):
        value = number % 100
        mine = ones[number % len(ones)] * (value + dist.get_rank())
        dist.all_reduce(mine)
        right += (mine == 2 * value + 1).all()
    return int(right)


def forever() -> None:
    """All-reduce until the other rank dies. The only answer comes after the first ten."""
    ones = torch.ones(16384, device="cuda")
    for batch in itertools.count():
        for _ in range(10):
            dist.all_reduce(ones)
        torch.cuda.synchronize()
        if batch == 0:
            answer("going")


def mappings() -> dict[str, Any]:
    """The libgdrapi that this process has loaded, and how many mappings of GPU memory it has."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    libraries = {line.split()[-1] for line in lines if "libgdrapi.so" in line}
    return {
        "libraries": sorted(Path(one).name for one in libraries),
        "mappings": sum(bool(_MAPPED.search(line)) for line in lines),
    }


ACTIONS: dict[str, Callable[..., Any]] = {
    one.__name__: one for one in (check, check_group, timed, iterate, forever, mappings)
}


def answer(value: Any) -> None:
    """Tell the parent."""
    print(json.dumps(value), flush=True)


def main(rank: int, port: int) -> None:
    """Meet the other rank, then carry out requests until the input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
        device_id=torch.device("cuda", rank),
    )
    check(4, "float32")
    answer({"torch": torch.__version__, "nccl": ".".join(map(str, torch.cuda.nccl.version()))})
    for line in sys.stdin:
        action, *arguments = json.loads(line)
        answer(ACTIONS[action](*arguments))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
