"""Does NIXL take memory of a broker's regions? Two agents, each with a region, copy both ways.

On the simulated GPU its memory is host memory, which NIXL is given as DRAM; on a real one VRAM.
Needs NIXL (nixl-cu12 or nixl-cu13) and torch. UCX_TLS chooses UCX's transports.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

import gdrpy
from gdrpy import cuda
from gdrpy.broker import temporary

SCRIPT = "benchmarks/nixlregions.py"
#: Elements of a tensor, and seconds for a transfer.
COUNT, LIMIT = 1 << 20, 60
PACKAGES = ("nixl_cu13", "nixl_cu12")


def agent(name: str) -> Any:
    """One with NIXL's backend UCX."""
    for package in PACKAGES:
        if importlib.util.find_spec(package):
            api = importlib.import_module(f"{package}._api")
            return api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
    raise ModuleNotFoundError(f"{SCRIPT}: needs one of {', '.join(PACKAGES)}")


def tensor_in(broker: gdrpy.Broker, device: Any) -> torch.Tensor:
    """A tensor in a region of its own."""
    return torch.from_dlpack(broker.allocate(None, 4 * COUNT, device).array((COUNT,), "float32"))


def own(socket: str, device: Any, link: Connection) -> None:
    """The process whose region the other one reads and writes."""
    with gdrpy.connect(socket) as broker:
        tensor = tensor_in(broker, device)
        tensor.copy_(torch.arange(COUNT))
        tensor[-1].item()
        owner = agent("owner")
        registered = owner.register_memory(tensor)
        link.send((owner.get_agent_metadata(), tensor.data_ptr()))
        link.recv()
        link.send(bool((tensor == 7).all()))
        owner.deregister_memory(registered)


def transfer(reader: Any, operation: str, here: torch.Tensor, there: int, name: str) -> None:
    """Copy all elements. Raises RuntimeError if NIXL fails, TimeoutError."""
    kind = "VRAM" if here.is_cuda else "DRAM"
    place = max(here.get_device(), 0)
    ours, theirs = (
        reader.get_xfer_descs([(address, here.nbytes, place)], kind)
        for address in (here.data_ptr(), there)
    )
    handle = reader.initialize_xfer(operation, ours, theirs, name)
    state, deadline = reader.transfer(handle), time.monotonic() + LIMIT
    while state == "PROC":
        if time.monotonic() > deadline:
            raise TimeoutError(f"{operation}: not done after {LIMIT} s")
        state = reader.check_xfer_state(handle)
    if state != "DONE":
        raise RuntimeError(f"{operation}: {state}")
    reader.release_xfer_handle(handle)


def trial(device: Any) -> dict[str, bool]:
    """Whether a read and a write moved all elements."""
    context = get_context("spawn")
    link, end = context.Pipe()
    with temporary() as socket, gdrpy.connect(socket) as broker:
        owner = context.Process(target=own, args=(socket, device, end))
        owner.start()
        end.close()
        try:
            metadata, address = link.recv()  # raises EOFError if the owner has ended
            tensor, reader = tensor_in(broker, device), agent("reader")
            registered = reader.register_memory(tensor)
            name = reader.add_remote_agent(metadata)
            transfer(reader, "READ", tensor, address, name)
            found = {"READ": bool((tensor.cpu() == torch.arange(COUNT)).all())}
            tensor.fill_(7)
            tensor[-1].item()
            transfer(reader, "WRITE", tensor, address, name)
            link.send(None)
            found["WRITE"] = link.recv()
            reader.deregister_memory(registered)
        finally:
            owner.terminate()
            owner.join()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 1 if elements were wrong."""
    argparse.ArgumentParser(prog=SCRIPT, description=__doc__).parse_args(arguments)
    wrong = False
    for device in (0, "cpu"):
        found = trial(device)
        wrong |= not all(found.values())
        where = cuda.device_info(0).name if device == 0 else "host memory"
        print(f"{where}: " + ", ".join(f"{name} {ok}" for name, ok in found.items()))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
