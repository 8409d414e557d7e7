"""What the tests of Ray's tensor transport run: functions of the driver of ``ray_programs``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from select import select
from typing import Any

import ray
import torch
from ray.experimental import set_target_for_ref

import gdrpy
import gdrpy.ray
import ray_programs
from leases import used
from machines import WAIT
from ray_programs import await_regions, get

#: By place, actors that no program uses: one takes seconds to start.
_idle: dict[str, list[Any]] = {"here": [], "there": []}
_killed: list[Any] = []

gdrpy.ray.register_transport()  # before the classes that name it


def regions() -> int:
    """How many the broker has."""
    return int(ray_programs.broker.status()["regions"])


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Worker:
    """An actor that makes, takes, changes and passes on tensors."""

    kept: Any = None
    broker: gdrpy.Broker

    @ray.method(tensor_transport="GDRPY")
    def in_region(self, device: Any) -> dict[str, Any]:
        """A tensor in a region, with a view of it."""
        self.broker = gdrpy.connect()
        region = self.broker.allocate(None, 4096, device)
        self.kept = torch.from_dlpack(region.array(8, "float32"))
        self.kept.copy_(torch.arange(8.0))
        return {"all": self.kept, "row": self.kept.view(2, 4)[1], "of": "actor"}

    @ray.method(tensor_transport="GDRPY")
    def in_host_memory(self) -> list[torch.Tensor]:
        """Tensors of torch's own memory, some of which overlap."""
        table = torch.arange(12.0).reshape(3, 4)
        return [
            table,
            table[1],
            table.t(),
            torch.arange(1000).reshape(10, 100)[:, 7],
            torch.full((3,), 0.5, dtype=torch.bfloat16),
            torch.tensor([1 + 2j]).conj(),
            torch.empty(0, 3),
        ]

    @ray.method(tensor_transport="GDRPY")
    def sparse(self) -> torch.Tensor:
        """What has no dense memory."""
        return torch.eye(2).to_sparse()

    @ray.method(tensor_transport="GDRPY")
    def pass_on(self) -> Any:
        """What it has taken, or made."""
        return self.kept

    def take(self, value: Any) -> None:
        """Keep it."""
        self.kept = value

    def drop(self) -> None:
        """Keep nothing."""
        self.kept = None

    def fill(self, number: float) -> None:
        """Write to all elements of what is kept."""
        (self.kept["all"] if isinstance(self.kept, dict) else self.kept).fill_(number)

    def told(self) -> Any:
        """The elements of what is kept."""
        return told(self.kept)

    def layout(self) -> tuple[list[Any], list[Any], list[int]]:
        """The types and strides of the tensors that are kept, and where the first ones lie."""
        tensors = self.kept
        offsets = [one.data_ptr() - tensors[0].data_ptr() for one in tensors[:3]]
        return [str(one.dtype) for one in tensors], [one.stride() for one in tensors], offsets

    def pid(self) -> int:
        """This process's."""
        return os.getpid()


def told(value: Any) -> Any:
    """A value with lists in place of tensors."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: told(one) for name, one in value.items()}
    return [told(one) for one in value] if isinstance(value, list) else value


@contextmanager
def workers(*places: str) -> Iterator[list[Any]]:
    """Actors ``here`` or ``there`` that keep nothing: those of earlier programs that live.

    At the beginning the broker has no regions.
    """
    await_regions(0)
    taken = [_idle[place].pop() if _idle[place] else _worker(place) for place in places]
    try:
        yield taken
    finally:
        for place, one in zip(places, taken, strict=True):
            if one not in _killed:
                get(one.drop.remote())
                _idle[place].append(one)


def _worker(place: str) -> Any:
    return Worker.options(resources={place: 1}).remote()


def kill(actor: Any) -> None:
    """End its process."""
    process = os.pidfd_open(get(actor.pid.remote()))
    _killed.append(actor)
    try:
        ray.kill(actor)
        assert select([process], [], [], WAIT)[0]
    finally:
        os.close(process)


def share(device: Any) -> tuple[Any, Any, Any, int, int]:
    """What a receiver has of a tensor in a region, before and after the sender wrote, and what the
    sender has after the receiver did; the broker's regions and bytes.
    """
    with workers("here", "here") as (sender, receiver):
        reference = sender.in_region.remote(device)
        get(receiver.take.remote(reference))
        first = get(receiver.told.remote())
        get(sender.fill.remote(1))
        second = get(receiver.told.remote())
        get(receiver.fill.remote(2))
        return first, second, get(sender.told.remote()), regions(), used(ray_programs.broker)


def copy() -> tuple[Any, Any, int]:
    """What a receiver has of tensors in torch's memory, how they lie, and the broker's regions."""
    with workers("here", "here") as (sender, receiver):
        reference = sender.in_host_memory.remote()
        get(receiver.take.remote(reference))
        return get(receiver.told.remote()), get(receiver.layout.remote()), regions()


def free() -> list[int]:
    """The broker's regions while there is a reference to an object with a copy, while a receiver
    alone has it, and after that.
    """
    with workers("here", "here") as (sender, receiver):
        reference = sender.in_host_memory.remote()
        get(receiver.take.remote(reference))
        counts = [regions()]
        del reference
        get(sender.pid.remote())
        counts.append(regions())
        get(receiver.drop.remote())
        await_regions(0)
        return [*counts, regions()]


def free_unread() -> int:
    """The broker's regions after the only reference to an object that no actor read is gone."""
    with workers("here") as (sender,):
        reference = sender.in_host_memory.remote()
        ray.wait([reference], fetch_local=False)
        del reference
        await_regions(0)
        get(sender.pid.remote())  # it has not ended
        return regions()


def pass_on() -> tuple[Any, Any, int]:
    """What the driver and the first actor have after the third one wrote to a tensor that the
    second passed on; the broker's regions.
    """
    with workers("here", "here", "here") as (first, second, third):
        get(second.take.remote(first.in_region.remote(0)))
        reference = second.pass_on.remote()
        get(third.take.remote(reference))
        get(third.fill.remote(3))
        return told(get(reference)["row"]), get(first.told.remote()), regions()


def kill_receiver() -> tuple[Any, int, int]:
    """What the sender has and the broker's regions after a receiver was killed; regions when the
    sender was killed too.
    """
    with workers("here", "here") as (sender, receiver):
        reference = sender.in_region.remote(0)
        get(receiver.take.remote(reference))
        get(receiver.fill.remote(4))
        kill(receiver)
        found, count = get(sender.told.remote()), regions()
        kill(sender)
        await_regions(0)
        return found, count, regions()


def kill_sender() -> tuple[Any, int, int]:
    """What a receiver has of a copied object after the sender was killed; the broker's regions
    then, and when the receiver dropped it.
    """
    with workers("here", "here") as (sender, receiver):
        reference = sender.in_host_memory.remote()
        get(receiver.take.remote(reference))
        kill(sender)
        row, count = get(receiver.told.remote())[1], regions()
        get(receiver.drop.remote())
        await_regions(0)
        return row, count, regions()


def receive_from_the_dead() -> None:
    """Take a tensor whose sender was killed."""
    with workers("here", "here") as (sender, receiver):
        reference = sender.in_region.remote(0)
        ray.wait([reference], fetch_local=False)
        kill(sender)
        await_regions(0)
        get(receiver.take.remote(reference))


def put() -> tuple[Any, int, int]:
    """What an actor has of a tensor that the driver put; regions meanwhile, and after."""
    with workers("here") as (receiver,):
        reference = ray.put(torch.arange(3.0), _tensor_transport="GDRPY")
        get(receiver.take.remote(reference))
        found, count = get(receiver.told.remote()), regions()
        get(receiver.drop.remote())
        del reference
        await_regions(0)
        return found, count, regions()


def into_buffer() -> tuple[bool, Any]:
    """Whether the driver gets a tensor in its own buffer, and the elements."""
    with workers("here") as (sender,):
        get(sender.take.remote(torch.arange(3.0)))
        reference = sender.pass_on.remote()
        buffer = torch.zeros(3)
        set_target_for_ref(reference, [buffer])
        return get(reference).data_ptr() == buffer.data_ptr(), buffer.tolist()


def share_sparse() -> None:
    """Return a tensor without dense memory."""
    with workers("here") as (sender,):
        get(sender.sparse.remote())


def send_there() -> tuple[Any, Any]:
    """The error of an actor on the other machine, and what the object store brings instead."""
    with workers("here", "there") as (sender, receiver):
        reference = sender.in_region.remote(0)
        try:
            get(receiver.take.remote(reference))
        except gdrpy.BrokerUnavailable as error:
            found = str(error), told(ray.get(reference, _use_object_store=True))["row"]
        else:
            raise AssertionError("the other machine took it")
        kill(sender)  # Ray keeps the tensors of a transfer that failed
        kill(receiver)
        return found


def send_without_broker() -> None:
    """Return a tensor where there is no broker."""
    with workers("there") as (sender,):
        get(sender.in_host_memory.remote())


def receive_by_another_path() -> Any:
    """What a receiver has whose folder of the broker's socket lies elsewhere, as in a container."""
    transport = gdrpy.ray.Transport()
    sent = transport.extract_tensor_transport_metadata("object", [torch.arange(3.0)])
    sent.sources = [one._replace(socket="/elsewhere/broker.sock") for one in sent.sources]
    (tensor,) = transport.recv_multiple_tensors("object", sent, None)
    transport.garbage_collect("object", sent, [])
    return tensor.tolist()
