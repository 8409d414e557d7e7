"""Processes that get tensors through torch's queues, and what they are given to do."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import time
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

import gdrpy.torch
from gdrpy import cuda
from gdrpy.memory.gpu import memory_at
from gdrpy.torch import reducers

#: About a tenth of a second on today's GPUs.
CYCLES = 200_000_000


class Worker:
    """A process that does what it is asked with tensors, and answers."""

    def __init__(self) -> None:
        self.context: Any = multiprocessing.get_context("forkserver")
        self._inbox, self._outbox = self.context.SimpleQueue(), self.context.SimpleQueue()
        self.process = self.context.Process(
            target=_serve, args=(self._inbox, self._outbox), daemon=True
        )
        self.process.start()
        self._outbox._writer.close()  # so that its end is noticed

    def ask(self, function: Any, *things: Any) -> Any:
        """What a function of this module returns there, or the error that it raises."""
        self._inbox.put((function, things))
        return self._outbox.get()

    def kill(self) -> None:
        """Kill it, and wait until it is gone: what it held is free before that."""
        self.process.kill()
        self.process.join(60)

    def close(self) -> None:
        if self.process.is_alive():
            self._inbox.put(None)
            self.process.join(60)
            assert self.process.exitcode == 0
        resource_sharer.stop()


def _serve(inbox: Any, outbox: Any) -> None:
    gdrpy.torch.install_reducers()
    while True:
        try:
            task = inbox.get()
            if task is None:
                return
            function, things = task
            answer = function(*things)
        except Exception as error:
            answer = error
        task = things = None
        outbox.put(answer)
        del answer


#: What a process was told to keep.
kept: list[Any] = []


def identity(*things: Any) -> Any:
    return things[0] if len(things) == 1 else things


def keep(*things: Any) -> None:
    kept.extend(things)


def drop() -> None:
    """Drop everything."""
    kept.clear()
    gc.collect()
    reducers._outboxes.collect()


def dropped() -> int:
    """Drop everything; how much memory of GPUs this process has mapped when others are done, too.

    It is 0, or this waits for 20 seconds: no event tells that the last one is.
    """
    drop()
    deadline = time.monotonic() + 20
    while mapped() and time.monotonic() < deadline:
        time.sleep(0.001)
        reducers._look()
    return mapped()


def mapped() -> int:
    """How many mappings of memory of simulated GPUs this process has."""
    return Path("/proc/self/maps").read_bytes().count(b"/memfd:gdrpy-sim")


def again() -> Any:
    return kept[-1]


def make(region: gdrpy.Region) -> torch.Tensor:
    """A tensor of this process's own, in a region."""
    return torch.from_dlpack(region.array(3, "F32", 64))


def sent() -> int:
    """How many storages this process keeps for receivers."""
    reducers._outboxes.collect()
    return reducers._outboxes.count


def forward(connection: Any) -> None:
    """Send the last tensor on by its pickle's bytes."""
    connection.send_bytes(bytes(ForkingPickler.dumps(kept[-1])))


def load(message: bytes) -> None:
    kept.append(pickle.loads(message))


def add(tensor: torch.Tensor) -> list[float]:
    """What a tensor holds; all of it is 1 more afterwards."""
    found: list[float] = tensor.tolist()
    with torch.no_grad():
        tensor += 1
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return found


def look(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a tensor is here."""
    return (
        type(tensor).__name__,
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
        tensor.requires_grad,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def become(uid: int) -> None:
    """Be another user from now on. What this process has imported stays there."""
    os.setegid(uid)
    os.seteuid(uid)


def queue(tensor: torch.Tensor, bell: gdrpy.Flag) -> None:
    """Drop a tensor while a GPU's stream waits for a flag, to fill the tensor then."""
    with cuda.context(0):
        stream = cuda.call("cuStreamCreate", 1)
        bell.stream_wait(stream, 1)
        cuda.call("cuMemsetD8Async", tensor.data_ptr(), 9, tensor.nbytes, stream)
    kept.append(bell)


def fill_later(tensor: torch.Tensor) -> None:
    """Drop a CUDA tensor while the GPU has yet to fill it."""
    torch.cuda._sleep(CYCLES)
    tensor.fill_(9)


def double_after(event: Any, tensor: torch.Tensor) -> list[float]:
    """Double a CUDA tensor after another process's event."""
    with torch.cuda.stream(torch.cuda.Stream()):
        event.wait()
        tensor.mul_(2)
        found: list[float] = tensor.tolist()
    return found


def place(*tensors: torch.Tensor) -> list[tuple[str, int]]:
    """Where tensors lie, from the first one on."""
    first = tensors[0].data_ptr()
    return [(str(one.device), one.data_ptr() - first) for one in tensors]


def looks(*tensors: torch.Tensor) -> list[tuple[Any, ...]]:
    return [look(tensor) for tensor in tensors]


def storages(*tensors: torch.Tensor) -> tuple[int, int]:
    """How many storages tensors have, and how much memory of GPUs this process has mapped."""
    return len({tensor.untyped_storage()._cdata for tensor in tensors}), mapped()


def guarded(tensor: torch.Tensor) -> bool:
    """Whether this process's GPU view of a tensor refuses writes."""
    found = memory_at(tensor.data_ptr(), tensor.nbytes)
    assert found is not None
    return found[0].guarded


def learn(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a tensor that requires a gradient came without."""
    tensor.grad = torch.ones_like(tensor)
    return type(tensor).__name__, tensor.requires_grad, bool(tensor._backward_hooks)


def note(thing: Any) -> Any:
    return type(thing).__name__, thing.note, thing.tolist()


def increase(tensor: torch.Tensor) -> torch.Tensor:
    """Fill a tensor, and return one of this process's own."""
    tensor.fill_(4)
    return tensor.add(1)


def told(tensor: torch.Tensor, connection: Any) -> None:
    """Say what a tensor that came as an argument holds."""
    connection.send(add(tensor))


def say(receiver: Any, sender: Any) -> None:
    """Say what comes, or what its arrival raises."""
    try:
        sender.send(receiver.recv().tolist())
    except Exception as error:
        sender.send(str(error))


def send_one(socket: str | None, sender: Any, stays: bool) -> None:
    """Send a tensor of a region that is dropped at once, and end or stay."""
    gdrpy.torch.install_reducers()
    if socket is None:
        region: gdrpy.Region = gdrpy.alloc(1 << 20)
    else:
        region = gdrpy.connect(socket).allocate(None, 1 << 20)
    tensor = torch.from_dlpack(region.array(3, "F32"))
    tensor.fill_(7)
    del region
    sender.send(tensor)
    del tensor
    if stays:
        sender.poll(60)
    sys.stdout.flush()
    os._exit(0)


class Noted(torch.Tensor):
    """A subclass, whose attributes travel."""

    note: int
