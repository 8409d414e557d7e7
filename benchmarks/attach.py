"""Attaching to memory: from a descriptor in a fresh process, and the cost of further objects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gdrpy
from attach_child import FIRST
from freshprocess import Times, found_by
from gdrpy import Region
from harness import Contender, Session, Statement, Topic
from payload import GpuBytes

MODULE = "attach"

FRESH = "fresh CPU-only process, descriptor to first store"
FRESH_WITH_GPU = "fresh process with a GPU view, descriptor to first store"
FURTHER = "attached process, further region to first store"

_CHILD = Path(__file__).resolve().parent / "attach_child.py"
_PROCESSES = 20
_PROCESSES_WITH_CUDA = 5
_PROCESSES_QUICK = 2
_REPEATS = 10
_MIB = 1 << 20


def run(session: Session) -> None:
    """Measure attaching into the session."""
    few = _PROCESSES_QUICK if session.quick else _PROCESSES_WITH_CUDA
    many = _PROCESSES_QUICK if session.quick else _PROCESSES
    with gdrpy.alloc(_MIB) as region:
        _attaches(session, region, "cpu", many)
        _attaches(session, region, "gpu", few)
        _objects(session, region)
    _pins(session, few)
    _imports(session, many)


def _child(*arguments: object, inherit: Sequence[int] = ()) -> dict[str, Any]:
    """The times that attach_child.py finds."""
    return found_by(_CHILD, *arguments, inherit=inherit)


def _attaches(session: Session, region: Region, action: str, processes: int) -> None:
    times = Times(session, MODULE)
    gpu = GpuBytes(region.ptr + FIRST)
    fd = region.export()
    try:
        for number in range(1, processes + 1):
            session.step(f"{MODULE}: {action} process {number}")
            found = _child(action, fd, number, _REPEATS, inherit=[fd])
            found["verified"] &= int.from_bytes(gpu.get(4), "little") == number
            times.add(found)
    finally:
        os.close(fd)
    if action == "gpu":
        times.report(
            "first",
            FRESH_WITH_GPU,
            "Region.from_fd(fd) and a store after `import gdrpy`: CUDA starts; one a process",
        )
        return
    times.report(
        "first",
        FRESH,
        "Region.from_fd(fd, gpu=False) and a store, after `import gdrpy`; one a process",
    )
    times.report("further", FURTHER, f"the same again; {_REPEATS} in each of the processes")
    times.report(
        "map",
        "region.map of a further 4 KiB",
        f"without closing; {_REPEATS} in each of the processes",
    )


def _pins(session: Session, processes: int) -> None:
    times = Times(session, MODULE)
    for number in range(1, processes + 1):
        session.step(f"{MODULE}: pin process {number}")
        times.add(_child("pin", number, _REPEATS))
    times.report(
        "first",
        "first pin and map of a cuMemAlloc pointer",
        "gdr.pin(ptr, 64 KiB).map() in a fresh process that has a CUDA context, with what the "
        "backend opens and checks once a process",
    )
    times.report(
        "further",
        "further pin and map of a cuMemAlloc pointer",
        f"the same again; {_REPEATS} in each of the processes",
    )


def _imports(session: Session, processes: int) -> None:
    times = Times(session, MODULE)
    _child("import")  # writes the byte code
    for number in range(1, processes + 1):
        session.step(f"{MODULE}: import {number}")
        times.add(_child("import"))
    times.report("numpy", "import numpy", "fresh process, byte code cached")
    times.report("gdrpy", "import gdrpy after numpy", "fresh process, byte code cached")


def _objects(session: Session, region: Region) -> None:
    """Objects that this process, which has CUDA, makes and closes at once."""
    for operation, statement in (
        ("alloc and close, 2 MiB", "alloc(nbytes).close()"),
        ("export and close", "close(region.export())"),
        ("map and close, 4 KiB", "region.map(0, 4096).close()"),
    ):
        timed = Statement(
            statement,
            alloc=gdrpy.alloc,
            nbytes=2 * _MIB,
            region=region,
            close=os.close,
        )
        topic = Topic(MODULE, operation, unit="ms")
        session.compare(topic, [Contender("gdrpy", f"in a loop: {statement}", timed)])
