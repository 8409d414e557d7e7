"""What the Dask tests run: functions of a client, with a broker at ``socket``."""

from __future__ import annotations

import asyncio
import socket as sockets
import sys
from typing import Any

import cloudpickle
import distributed
import numpy as np
from distributed import get_worker

import gdrpy
from gdrpy.broker import Reference
from leases import await_holders, held, used
from machines import WAIT

broker: gdrpy.Broker
client: distributed.Client


def free_port() -> int:
    """One that nobody listens at."""
    with sockets.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start(socket: str, address: str) -> None:
    """Make this process a client of the cluster with its three workers."""
    global broker, client
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    broker = gdrpy.connect(socket)
    client = distributed.Client(address, timeout=WAIT, set_as_default=True)
    client.wait_for_workers(3, timeout=WAIT)


def stop() -> None:
    """Leave the cluster."""
    client.close()
    broker.close()


def on(name: str, function: Any, *args: Any) -> Any:
    """A future of a task on the worker of this name."""
    return client.submit(function, *args, workers=[name], pure=False)


def run(name: str, function: Any, *args: Any) -> Any:
    """What a task on the worker of this name returns, or raises."""
    return on(name, function, *args).result(WAIT)


def read(reference: Reference, nbytes: int) -> bytes:
    """A task: the region's first bytes."""
    with reference.open() as region:
        return bytes(region.read(nbytes))


def write(reference: Reference, data: bytes) -> None:
    """A task: the region's first bytes."""
    with reference.open() as region:
        region.write(data)


def total(reference: Reference) -> int:
    """A task: the sum of the array in the region."""
    with reference.open() as region:
        return int(region.numpy().sum())


def tell(reference: Reference) -> dict[str, Any]:
    """A task: what the region is here."""
    names = ("id", "name", "sealed", "readonly", "metadata", "nbytes", "device")
    with reference.open() as region:
        return {name: getattr(region, name) for name in names}


def make(socket: str, values: list[int]) -> Reference:
    """A task: a region of the worker's machine, which its name keeps."""
    with (
        gdrpy.connect(socket) as there,
        there.allocate("made", len(values), metadata={"of": "task"}) as region,
    ):
        region.write(bytes(values))
        return Reference(region)


def hold(reference: Reference) -> None:
    """A task: open the region, and let the worker keep it."""
    get_worker().held_by_test = reference.open()


def let_go() -> None:
    """A task: what :func:`hold` held."""
    get_worker().held_by_test.close()


def written_by_a_task_here() -> tuple[bytes, dict[str, Any], int]:
    """What the client reads after a task on its machine wrote, what that has, and the number."""
    with broker.allocate(None, 4096, metadata={"for": "both"}) as region:
        reference = Reference(region)
        run("a", write, reference, b"by the task")
        return region.read(11), run("b", tell, reference), region.id


def passed_on_by_the_scheduler() -> tuple[bytes, int, int]:
    """What a task reads of a region whose reference was scattered; its leases while the reference
    is there, and while the worker has opened it too.
    """
    with broker.allocate("passed", 4096) as region:
        region.write(b"to both")
        future = client.scatter(Reference(region), workers=["a"], direct=False)
        found = run("a", read, future, 7)
        before = held(broker, "passed")
        run("a", hold, future)
        after = held(broker, "passed")
        run("a", let_go)
        region.delete()
        return found, before, after


def array_of_a_task(name: str) -> list[float]:
    """What a task has of a slice of a region."""

    def elements(reference: Reference) -> list[float]:
        with reference.open() as region:
            return region.array((2, 2), "F32", 8).read().ravel().tolist()

    with broker.put("sliced", np.arange(8, dtype=np.float32)) as region:
        region.delete()
        found: list[float] = run(name, elements, Reference(region))
        return found


def mapping_of_a_task() -> int:
    """What a task there reads in a pickled mapping of its copy of a region from here."""

    def sent_on(reference: Reference) -> int:
        with reference.open() as region:
            region.write(b"x")
            with cloudpickle.loads(cloudpickle.dumps(region.cpu)) as mapping:
                return mapping.read(1)[0]

    with broker.allocate(None, 4096) as region:
        return run("there", sent_on, Reference(region))


def made_by_a_task_there(socket: str) -> tuple[bytes, bytes, dict[str, Any]]:
    """What a task here reads of a region that the worker there holds, and what has the client."""
    future = on("there", make, socket, [7, 8, 9])
    found = run("a", read, future, 3)
    with future.result(WAIT).open() as region:
        return found, region.read(3), region.metadata


def made_by_a_task_here(socket: str) -> tuple[bytes, dict[str, Any]]:
    """What a task there reads of a region that a worker here holds, and what that has."""
    future = on("a", make, socket, [7, 8, 9])
    found = run("there", read, future, 3), run("there", tell, future)
    broker.delete("made")
    return found


def sent_by_the_client() -> tuple[bytes, bytes]:
    """What a task there reads of the client's region; what the client reads after it wrote."""
    with broker.allocate(None, 4096) as region:
        region.write(b"of the client")
        found = run("there", read, Reference(region), 13)
        run("there", write, Reference(region), b"by the task..")
        return found, region.read(13)


def tell_there(readonly: bool, seal: bool) -> dict[str, Any]:
    """What a region that may not be written is on the other machine."""
    broker.put("kept", [1, 2, 3], "cpu", seal=seal).close()
    with broker.get("kept", readonly=readonly) as region:
        region.delete()
        return run("there", tell, Reference(region))


def write_there(seal: bool) -> None:
    """Write to a region that may not be written."""
    broker.put("kept", [1, 2, 3], "cpu", seal=seal).close()
    with broker.get("kept", readonly=True) as region:
        region.delete()
        run("there", write, Reference(region), b"no")


def sum_of_large(nbytes: int) -> tuple[int, int]:
    """The sum of bytes in a region, on the other machine and here."""
    values = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    with broker.put("large", values) as region:
        region.delete()
        return run("there", total, Reference(region)), int(values.sum())


def use_what_is_gone(name: str) -> None:
    """Open a reference to a region that no process holds any more."""
    with broker.allocate(None, 4096, "cpu") as region:
        reference = Reference(region)
    run(name, read, reference, 1)


def address() -> str:
    """The scheduler's."""
    return str(client.scheduler.address)


def await_workers(count: int) -> int:
    """How many there are, when there are so many."""
    client.wait_for_workers(count, timeout=WAIT)
    return len(client.scheduler_info(n_workers=-1)["workers"])


def use_on(name: str) -> None:
    """Use a region on the worker of this name."""
    with broker.allocate(None, 4096, "cpu") as region:
        run(name, read, Reference(region), 1)


def use_in_event_loop() -> bytes:
    """Open a region of the other machine in a coroutine."""

    async def task(reference: Reference) -> bytes:
        return read(reference, 3)

    with broker.allocate(None, 4096, "cpu") as region:
        return run("there", task, Reference(region))


def use_beside_event_loop() -> bytes:
    """Open a region of the other machine in a coroutine that waits for a thread."""

    async def task(reference: Reference) -> bytes:
        with await asyncio.to_thread(reference.open) as region:
            return bytes(region.read(3))

    with broker.allocate(None, 4096, "cpu") as region:
        region.write(b"off")
        return run("there", task, Reference(region))


def share_weights() -> tuple[list[float], int, int, int]:
    """Sums of a tensor by two workers' two threads; the broker's bytes and the leases
    meanwhile, and leases after.
    """
    weight = np.full((256, 1024), 0.5, np.float32)
    with broker.put_tensors("weights", {"layer.weight": weight}, seal=True) as region:
        reference = Reference(region)

        def work(reference: Reference) -> float:
            with reference.open() as weights:
                # Array.sum() is Python code; Dask's profiler may keep its frame and the array.
                return float(np.add.reduce(weights.tensors()["layer.weight"].numpy(), axis=None))

        sums = [run(name, work, reference) for name in "aabb"]
        for name in "ab":
            run(name, hold, reference)
        more, holders = used(broker), held(broker, "weights")
        for name in "ab":
            run(name, let_go)
        after = await_holders(broker, "weights", 1)
        region.delete()
    return sums, more, holders, after
