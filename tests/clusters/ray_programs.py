"""What the Ray tests run: functions of a driver, with a broker at ``socket``."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import ray

import gdrpy
from gdrpy.broker import Reference
from leases import await_holders, held, used
from machines import WAIT

#: The least that Ray takes.
STORE_BYTES = 75 << 20

broker: gdrpy.Broker


def start(socket: str, folder: str) -> None:
    """Make this process the driver of a cluster of its own, whose files are in a folder."""
    global broker
    broker = gdrpy.connect(socket)
    ray.init(
        "local",
        num_cpus=2,
        resources={"here": 100},
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        logging_level="error",
        log_to_driver=False,
        _temp_dir=folder,
    )


def stop() -> None:
    """End the cluster."""
    ray.shutdown()
    broker.close()


def address() -> str:
    """Where other nodes find the cluster."""
    return str(ray.get_runtime_context().gcs_address)


def await_nodes(count: int) -> None:
    """Until so many are alive."""
    deadline = time.monotonic() + WAIT
    while sum(node["Alive"] for node in ray.nodes()) != count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{ray.nodes()}")
        time.sleep(0.05)


@ray.remote(num_cpus=0)
class Holder:
    """An actor that opens and holds what it is given a reference to."""

    region: Any = None
    before: Any = None

    def take(self, reference: Reference) -> int:
        """Open it, hold it beside what was held before, and return its number."""
        self.before, self.region = self.region, reference.open()
        return int(self.region.id)

    def make(self, socket: str, values: list[int]) -> Reference:
        """A region of this actor's machine."""
        self.region = gdrpy.connect(socket).allocate(None, len(values), metadata={"of": "actor"})
        self.region.write(bytes(values))
        return Reference(self.region)

    def read(self, nbytes: int) -> bytes:
        """The region's first bytes."""
        return bytes(self.region.read(nbytes))

    def write(self, data: bytes) -> None:
        """The region's first bytes."""
        self.region.write(data)

    def tell(self) -> dict[str, Any]:
        """What it is here."""
        region = self.region
        names = ("id", "name", "sealed", "readonly", "metadata", "nbytes", "device")
        return {name: getattr(region, name) for name in names}

    def elements(self) -> list[float]:
        """The elements of an array in the region."""
        return self.region.array((2, 2), "F32", 8).read().ravel().tolist()

    def total(self) -> int:
        """The sum of the array in the region."""
        return int(self.region.numpy().sum())

    def weights(self) -> float:
        """The sum of the first of the tensors."""
        return float(self.region.tensors()["layer.weight"].numpy().sum())


def actor(*, there: bool) -> Any:
    """An actor on this machine or the other."""
    return Holder.options(resources={"there" if there else "here": 1}).remote()


def holder_of(reference: Any, there: bool) -> Any:
    """An actor that has opened a reference, or one in the object store."""
    holder = actor(there=there)
    get(holder.take.remote(reference))
    return holder


def get(reference: Any) -> Any:
    """The value; raises what a task raised."""
    try:
        return ray.get(reference, timeout=WAIT)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def written_by_an_actor_here() -> tuple[bytes, dict[str, Any], int]:
    """What the driver reads after an actor on its machine wrote, what that has, and the number."""
    with broker.allocate(None, 4096, metadata={"for": "both"}) as region:
        holder = holder_of(Reference(region), False)
        get(holder.write.remote(b"by the actor"))
        return region.read(12), get(holder.tell.remote()), region.id


def written_by_an_actor_there() -> tuple[bytes, bytes, dict[str, Any]]:
    """What the actor on the other machine reads, what the driver reads after it wrote, and what
    that has.
    """
    with broker.allocate("here", 4096, metadata={"for": "both"}) as region:
        region.write(b"by the driver")
        holder = holder_of(Reference(region), True)
        read = get(holder.read.remote(13))
        get(holder.write.remote(b"by the actor."))
        region.delete()
        return read, region.read(13), get(holder.tell.remote())


def tell_there(readonly: bool, seal: bool) -> dict[str, Any]:
    """What a region that may not be written is on the other machine."""
    broker.put("kept", [1, 2, 3], "cpu", seal=seal).close()
    with broker.get("kept", readonly=readonly) as region:
        holder = holder_of(Reference(region), True)
        assert get(holder.total.remote()) == 6
        region.delete()
        return get(holder.tell.remote())


def write_there(seal: bool) -> None:
    """Write to a region that may not be written."""
    broker.put("kept", [1, 2, 3], "cpu", seal=seal).close()
    with broker.get("kept", readonly=True) as region:
        region.delete()
        get(holder_of(Reference(region), True).write.remote(b"no"))


def sum_of_large(nbytes: int) -> tuple[int, int]:
    """The sum of bytes in a region, on the other machine and here."""
    values = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    with broker.put("large", values) as region:
        region.delete()
        return get(holder_of(Reference(region), True).total.remote()), int(values.sum())


def arrives_twice(seal: bool) -> list[int]:
    """The numbers there of a region that is sent to an actor twice, and to another one."""
    with broker.put("twice", [1, 2, 3], "cpu", seal=seal) as region:
        region.delete()
        holders = [actor(there=True) for _ in range(2)]
        reference = Reference(region)
        return [get(holder.take.remote(reference)) for holder in (holders[0], *holders)]


def made_there(socket: str) -> tuple[bytes, dict[str, Any]]:
    """What the driver has of a region that an actor on the other machine made and holds."""
    holder = actor(there=True)
    with get(holder.make.remote(socket, [7, 8, 9])).open() as region:
        return region.read(3), region.metadata


def array_of_an_actor(there: bool) -> list[float]:
    """What an actor has of a slice of a region."""
    with broker.put("sliced", np.arange(8, dtype=np.float32)) as region:
        region.delete()
        holder = holder_of(Reference(region), there)
        found: list[float] = get(holder.elements.remote())
        return found


def put_once() -> list[int]:
    """The sums of a region with a reference in Ray's object store, here and there."""
    with broker.put("stored", [1, 2, 3]) as region:
        region.delete()
        reference = ray.put(Reference(region))
        return [get(holder_of(reference, there).total.remote()) for there in (False, True)]


def use_what_is_gone(there: bool) -> None:
    """Open a reference to a region that no process holds any more."""
    with broker.allocate(None, 4096, "cpu") as region:
        reference = Reference(region)
    holder_of(reference, there)


def use_there() -> None:
    """Open a region on the other machine."""
    with broker.allocate(None, 4096, "cpu") as region:
        holder_of(Reference(region), True)


def share_weights() -> tuple[list[float], int, int, int, int]:
    """Four actors' sums of a tensor; the broker's bytes and the leases while they have it, leases
    without one actor, and without all.
    """
    await_regions(0)
    weight = np.full((256, 1024), 0.5, np.float32)
    region = broker.put_tensors("weights", {"layer.weight": weight}, seal=True)
    actors = [holder_of(Reference(region), False) for _ in range(4)]
    sums = [get(holder.weights.remote()) for holder in actors]
    more, holders = used(broker), held(broker, "weights")
    ray.kill(actors.pop())
    without_one = await_holders(broker, "weights", holders - 1)
    for holder in actors:
        ray.kill(holder)
    region.close()
    without_all = await_holders(broker, "weights", 0)
    broker.delete("weights")
    return sums, more, holders, without_one, without_all


def await_regions(count: int) -> None:
    """Until the broker has no more: actors that nobody refers to end in time."""
    deadline = time.monotonic() + WAIT
    while broker.status()["regions"] > count and time.monotonic() < deadline:
        time.sleep(0.02)
