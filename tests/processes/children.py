"""What the processes that the tests start are given to do."""

from __future__ import annotations

from typing import Any

import gdrpy
from support import settled_descriptors


def echo(inbox: Any, outbox: Any) -> None:
    """Send back what is asked of each thing that comes, until None does."""
    while (task := inbox.get()) is not None:
        function, things = task
        try:
            outbox.put(globals()[function](*things))
        except Exception as error:
            outbox.put(error)


def identity(thing: Any) -> Any:
    return thing


def several(*things: Any) -> tuple[Any, ...]:
    return things


def views(region: gdrpy.Region) -> tuple[Any, ...]:
    """What a region is here, and its first bytes as each view has them."""
    gpu = region._ptr is not None
    cpu = None if region._cpu is None else (region.cpu.readonly, region.cpu.read(5))
    return type(region).__name__, region.nbytes, gpu, region.location, cpu


def greet(mapping: gdrpy.Mapping, offset: int = 0) -> tuple[Any, ...]:
    """Answer what a mapping holds by another word."""
    found = mapping.read(5, offset)
    mapping.write(b"world", offset)
    return type(mapping).__name__, mapping.nbytes, mapping.ptr is not None, found


def fill(array: gdrpy.Array) -> tuple[Any, ...]:
    array.numpy()[:] = 7
    return array.dtype, array.shape, array.offset


def answer(asked: gdrpy.Flag, answered: gdrpy.Flag) -> None:
    answered.set(asked.wait(5, timeout=20) + 1)


def ring(region: gdrpy.Region, bell: gdrpy.Flag) -> None:
    """Write to a region that came as an argument, then say so by a flag that came too."""
    region.write(b"world")
    assert bell.mapping is region.cpu
    bell.set(1)


def same(region: gdrpy.Region, *others: Any) -> list[bool]:
    """Whether mappings and arrays that came along are of this region."""
    return [other is region.cpu or getattr(other, "region", None) is region for other in others]


def make(word: bytes, device: int | str = 0) -> gdrpy.Region:
    region = gdrpy.alloc(4096, device)  # type: ignore[arg-type]
    region.write(word)
    return region


def descriptors(*_things: Any) -> int:
    """How many this process has open, the things it was sent among them."""
    return settled_descriptors()


def write(thing: Any, word: bytes) -> None:
    thing.write(word)


def report(region: gdrpy.Region, sender: Any) -> None:
    """Say what a read raises."""
    try:
        sender.send(region.read(5))
    except gdrpy.Forked as error:
        sender.send(str(error))


def answer_one(connection: Any) -> None:
    """Say what the region that comes begins with."""
    connection.send(connection.recv().read(5))


def send_and_end(sender: Any) -> None:
    sender.send(make(b"hello"))


def send_and_wait(sender: Any) -> None:
    sender.send(make(b"hello"))
    sender.poll(30)


def devices(regions: list[gdrpy.Region], sender: Any) -> None:
    sender.send([(region.device, region.read(5)) for region in regions])


def with_tensor(region: gdrpy.Region, tensor: Any) -> tuple[bytes, float]:
    """What is in both, one that each came its own way."""
    tensor += 1
    return region.read(5), float(tensor.sum())
