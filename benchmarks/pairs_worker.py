"""Calls of one checkout's gdrpy, timed as ``pairs.py`` asks.

``pairs_worker.py CHECKOUT CORE FOLDER`` serves a broker in a folder, prints the names of the calls,
and then for each line ``[name, calls]`` the time that so many took, in ns. It uses what every
checkout has: no other module of this folder.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

_REGION = 2 << 20
#: Offsets far apart: the GPU answers sooner from some parts of its memory than from others.
_OFFSETS = range(0, _REGION, 32 << 10)
#: Objects that are open at a time, where closing is not timed.
_OPEN = 20

Batch = Callable[[int], int]


def main() -> None:
    checkout, core, folder = sys.argv[1:]
    sys.path.insert(0, checkout)
    os.sched_setaffinity(0, {int(core)})
    import gdrpy

    if Path(gdrpy.__file__).parents[1] != Path(checkout):
        sys.exit(f"gdrpy is {gdrpy.__file__}, not that of {checkout}")
    path = f"{folder}/broker.sock"
    with (
        subprocess.Popen(
            [sys.executable, "-m", "gdrpy", "serve", "--json", "--socket", path],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([checkout, *sys.path])},
            stdout=subprocess.PIPE,
            text=True,
        ) as server,
        gdrpy.alloc(_REGION) as region,
        gdrpy.open() as gdr,
    ):
        assert server.stdout is not None
        server.stdout.readline()
        with gdrpy.connect(path) as broker:
            answer({**_copies(region), **_objects(region, gdr), **_of_broker(broker, path)})
        server.terminate()


def answer(calls: dict[str, Batch]) -> None:
    """Time calls as asked on stdin."""
    print(json.dumps(list(calls)), flush=True)
    gc.collect()
    gc.disable()
    for line in sys.stdin:
        name, count = json.loads(line)
        print(calls[name](count), flush=True)


def _loop(call: Callable[[], object]) -> Batch:
    def batch(count: int) -> int:
        start = perf_counter_ns()
        for _ in range(count):
            call()
        return perf_counter_ns() - start

    return batch


def _at_offsets(call: Callable[[int], object]) -> Batch:
    def batch(count: int) -> int:
        start = perf_counter_ns()
        for number in range(count):
            call(_OFFSETS[number % len(_OFFSETS)])
        return perf_counter_ns() - start

    return batch


def _without_close(call: Callable[[], Any], settle: Callable[[], object] = lambda: None) -> Batch:
    def batch(count: int) -> int:
        taken = 0
        for done in range(0, count, _OPEN):
            made = []
            start = perf_counter_ns()
            for _ in range(min(_OPEN, count - done)):
                made.append(call())
            taken += perf_counter_ns() - start
            for one in made:
                one.close()
            settle()
        return taken

    return batch


def _copies(region: Any) -> dict[str, Batch]:
    cpu = region.cpu
    calls: dict[str, Batch] = {
        "store": _at_offsets(lambda offset: cpu.store(offset, 1)),
        "load": _at_offsets(cpu.load),
    }
    for nbytes in (4, 64, 4 << 10):
        data = bytearray(nbytes)
        calls[f"write {nbytes} B"] = _at_offsets(lambda at, data=data: region.write(data, at))
        calls[f"readinto {nbytes} B"] = _at_offsets(lambda at, data=data: region.readinto(data, at))
    for nbytes in (64 << 10, 1 << 20):
        data = bytearray(nbytes)
        calls[f"write {nbytes >> 10} KiB"] = _loop(lambda data=data: region.write(data))
        calls[f"readinto {nbytes >> 10} KiB"] = _loop(lambda data=data: region.readinto(data))
    return calls


def _objects(region: Any, gdr: Any) -> dict[str, Batch]:
    import gdrpy

    fd = region.export()  # until this process ends
    pin = gdr.pin(region.ptr, 64 << 10)
    return {
        "alloc": _without_close(lambda: gdrpy.alloc(_REGION)),
        "alloc and close": _loop(lambda: gdrpy.alloc(_REGION).close()),
        "alloc for the CPU and close": _loop(lambda: gdrpy.alloc(_REGION, gpu=False).close()),
        "from_fd": _without_close(lambda: gdrpy.Region.from_fd(fd)),
        "from_fd and close": _loop(lambda: gdrpy.Region.from_fd(fd).close()),
        "from_fd for the CPU": _without_close(lambda: gdrpy.Region.from_fd(fd, gpu=False)),
        "pin and close": _loop(lambda: gdr.pin(region.ptr, 64 << 10).close()),
        "map and close": _loop(lambda: pin.map().close()),
    }


def _of_broker(broker: Any, path: str) -> dict[str, Batch]:
    import gdrpy

    names = [f"many/{number}" for number in range(100)]
    for name in names:
        broker.allocate(name, 4096, device="cpu").close()
    broker.allocate("kept", _REGION).close()

    def many() -> None:
        for region in broker.get_many(names, gpu=False):
            region.close()

    def each(call: Callable[[], Any]) -> Batch:
        return _without_close(call, broker.status)

    return {
        "connect and close": _loop(lambda: gdrpy.connect(path).close()),
        "get": each(lambda: broker.get("kept")),
        "get and close": _loop(lambda: broker.get("kept").close()),
        "get for the CPU": each(lambda: broker.get("kept", gpu=False)),
        "get_many of 100": _loop(many),
        "allocate 2 MiB of GPU memory": each(lambda: broker.allocate(None, _REGION, gpu=False)),
        "allocate 2 MiB of host memory": each(lambda: broker.allocate(None, _REGION, device="cpu")),
        "stat": _loop(lambda: broker.stat("kept")),
        "list of 101": _loop(broker.list),
    }


if __name__ == "__main__":
    main()
