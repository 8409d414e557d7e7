"""A tensor that one of Ray's actors hands to another: by gdrpy's transport, and by Ray's own.

From the call that returns the tensor to the receiver's answer with two of its elements. The actors
and the tensor are made before; each round writes the elements anew. Needs Ray and torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import ray
import torch

import gdrpy
import gdrpy.ray
import machine
from gdrpy import cuda
from gdrpy.broker import temporary
from harness import Measurement, Session, Topic
from results import add_arguments, result, save, show

SCRIPT = "benchmarks/raytensors.py"
MODULE = "raytensors"
#: The way whose tensor lies in a region from the beginning.
IN_REGION = "GDRPY, in a region"
#: Seconds for one hand-over.
LIMIT = 120

gdrpy.ray.register_transport()  # before the class that names it


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Worker:
    """Makes a tensor, hands it over, and reads what it is handed."""

    def make(self, nbytes: int, shared: bool, simulated: bool) -> None:
        """A tensor in a region, or in memory of torch's own."""
        device = "cpu" if simulated else "cuda"
        self.tensor = torch.zeros(nbytes // 4, device=device)
        if shared:
            self.broker = gdrpy.connect()
            region = self.broker.allocate(None, nbytes, 0 if simulated else device)
            self.tensor = torch.from_dlpack(region.array(nbytes // 4, "float32"))

    def write(self, number: float) -> None:
        """Mark the tensor at its ends, and wait until that is done."""
        self.tensor[0], self.tensor[-1] = number, -number
        self.tensor[-1].item()

    @ray.method(tensor_transport="GDRPY")
    def by_gdrpy(self) -> torch.Tensor:
        """The tensor."""
        return self.tensor

    @ray.method(tensor_transport="CUDA_IPC")
    def by_cuda_ipc(self) -> torch.Tensor:
        """The tensor."""
        return self.tensor

    @ray.method(tensor_transport="NIXL")
    def by_nixl(self) -> torch.Tensor:
        """The tensor."""
        return self.tensor

    def by_store(self) -> torch.Tensor:
        """The tensor, into Ray's object store."""
        return self.tensor

    def ends(self, tensor: torch.Tensor) -> tuple[float, float]:
        """Its first element and its last one."""
        return float(tensor[0]), float(tensor[-1])


def ways(simulated: bool) -> dict[str, tuple[str, str]]:
    """The ways by name: the sender's method, and how it works."""
    found = {
        IN_REGION: ("by_gdrpy", "@ray.method(tensor_transport='GDRPY')"),
        "GDRPY, torch's memory": ("by_gdrpy", "the same, with one copy into a region"),
    }
    if not simulated:
        found["CUDA IPC"] = ("by_cuda_ipc", "@ray.method(tensor_transport='CUDA_IPC')")
        if importlib.util.find_spec("nixl"):
            found["NIXL"] = ("by_nixl", "@ray.method(tensor_transport='NIXL')")
    return found | {"object store": ("by_store", "Ray's object store, through host memory")}


def pair(way: str, nbytes: int, simulated: bool) -> tuple[Any, Any]:
    """A sender with its tensor, and a receiver; on a real GPU all share that."""
    share = 0 if simulated else 1 / (2 * len(ways(simulated)))
    sender, receiver = (Worker.options(num_gpus=share).remote() for _ in range(2))
    ray.get(sender.make.remote(nbytes, way == IN_REGION, simulated))
    return sender, receiver


def hand_over(sender: Any, receiver: Any, method: str, number: float) -> int:
    """How long it took, in ns. Raises ValueError if wrong elements arrived."""
    ray.get(sender.write.remote(number))
    begun = time.perf_counter_ns()
    reference = getattr(sender, method).remote()
    found = ray.get(receiver.ends.remote(reference), timeout=LIMIT)
    taken = time.perf_counter_ns() - begun
    if found != (number, -number):
        raise ValueError(f"{method}: {found} arrived instead of {(number, -number)}")
    return taken


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The result as plain values."""
    simulated = cuda.simulated()
    arguments = ["--nbytes", str(options.nbytes), "--rounds", str(options.rounds)]
    header = machine.describe(arguments, options.commit, SCRIPT) | {
        "ray": ray.__version__,
        "torch": torch.__version__,
    }
    session = Session(0, False, lambda what: print(what, file=sys.stderr, flush=True))
    # Each way has actors of its own: what returned by a transport once, Ray stores more slowly.
    pairs = {way: pair(way, options.nbytes, simulated) for way in ways(simulated)}
    times: dict[str, list[float]] = {way: [] for way in pairs}
    for number in range(options.rounds + 1):
        for way, (method, _) in ways(simulated).items():
            if way in session.absent:
                continue
            session.step(f"{way}, round {number}")
            try:
                taken = hand_over(*pairs[way], method, number + 1.0)
            except (ray.exceptions.RayError, RuntimeError) as error:
                session.absent[way] = str(error).strip().splitlines()[-1]
                continue
            if number:  # the first one connects, imports, and maps
                times[way].append(taken / 1e6)
    topic = Topic(MODULE, "a tensor handed over", options.nbytes, "ms")
    for way, (_, how) in ways(simulated).items():
        if times[way]:
            session.add(Measurement(topic, way, how, times[way], verified=True))
    return result(session, header, [MODULE], {MODULE: session.seconds_since_begun()})


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 1 if a way failed."""
    parser = argparse.ArgumentParser(prog=SCRIPT, description=__doc__)
    parser.add_argument("--nbytes", type=int, default=1 << 30, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=10, help="default: %(default)s")
    add_arguments(parser)
    options = parser.parse_args(arguments)
    with temporary() as socket, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["GDRPY_SOCKET"] = socket
        ray.init(
            "local",
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=max(4 * options.nbytes, 75 << 20),
            _temp_dir=folder,
        )
        try:
            measured = measure(options)
        finally:
            ray.shutdown()
    show(measured, save(measured, options.output))
    return int(bool(measured["absent"]))


if __name__ == "__main__":
    sys.exit(main())
