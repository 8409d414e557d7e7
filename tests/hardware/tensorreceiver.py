"""A process that gets tensors, for the tests of torch's queues on a real GPU."""

from __future__ import annotations

from typing import Any

import torch

import gdrpy.torch

#: About a tenth of a second on today's GPUs.
CYCLES = 200_000_000

kept: list[Any] = []


def serve(inbox: Any, outbox: Any) -> None:
    """Send back what is asked of each thing that comes, until None does."""
    gdrpy.torch.install_reducers()
    while True:
        try:
            task = inbox.get()
            if task is None:
                return
            name, things = task
            answer = globals()[name](*things)
        except Exception as error:
            answer = error
        task = things = None
        outbox.put(answer)
        del answer


def identity(thing: Any) -> Any:
    return thing


def add(tensor: torch.Tensor) -> list[float]:
    """What a tensor holds; all of it is 1 more afterwards."""
    found: list[float] = tensor.tolist()
    tensor += 1
    torch.cuda.synchronize()
    return found


def keep(*tensors: torch.Tensor) -> None:
    kept.extend(tensors)


def drop() -> None:
    kept.clear()


def place(*tensors: torch.Tensor) -> list[tuple[str, int]]:
    """Where tensors lie, from the first one on."""
    first = tensors[0].data_ptr()
    return [(str(one.device), one.data_ptr() - first) for one in tensors]


def fill_later(tensor: torch.Tensor) -> None:
    """Drop a tensor while the GPU has yet to fill it."""
    torch.cuda._sleep(CYCLES)
    tensor.fill_(9)


def double_after(event: Any, tensor: torch.Tensor) -> list[float]:
    """Double a tensor after another process's event."""
    with torch.cuda.stream(torch.cuda.Stream()):
        event.wait()
        tensor.mul_(2)
        found: list[float] = tensor.tolist()
    return found
