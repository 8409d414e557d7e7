"""Calls of one checkout's gdrpy, timed as ``pairs.py`` asks.

``pairs_worker.py CHECKOUT CORE FOLDER`` serves a broker in a folder, prints the names of the calls,
and then for each line ``[name, calls]`` the time that so many took, in ns. It uses what every
checkout has: no other module of this folder.

``pairs_worker.py client SOCKET`` is one of several clients on all cores, which print for each line
with a number of seconds how many requests were answered in that time.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

from msgspec import msgpack

_REGION = 2 << 20
#: Offsets far apart: the GPU answers sooner from some parts of its memory than from others.
_OFFSETS = range(0, _REGION, 32 << 10)
#: Objects that are open at a time, where closing is not timed.
_OPEN = 20
#: Processes that ask at once, for how many seconds, and the leases that each gives back at a time.
_CLIENTS, _SECONDS, _LEASES = 16, 0.5, 64

Batch = Callable[[int], int]


def main() -> None:
    if sys.argv[1] == "client":
        ask(sys.argv[2])
        return
    checkout, core, folder = sys.argv[1:]
    cores = os.sched_getaffinity(0)
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
        ExitStack() as stack,
    ):
        assert server.stdout is not None
        server.stdout.readline()
        with gdrpy.connect(path) as broker:
            crowd = Crowd(path, cores, stack)
            answer(
                {
                    **_copies(region),
                    **_objects(region, gdr),
                    **_of_broker(broker, path),
                    f"get by {_CLIENTS} clients": crowd.batch,
                }
            )
        server.terminate()


def answer(calls: dict[str, Batch]) -> None:
    """Time calls as asked on stdin."""
    print(json.dumps(list(calls)), flush=True)
    gc.collect()
    gc.disable()
    for line in sys.stdin:
        name, count = json.loads(line)
        print(calls[name](count), flush=True)


def ask(path: str) -> None:
    """Get a region without mapping it for as many seconds as each line says."""
    get = msgpack.encode({"op": "get", "id": 1, "name": "kept", "readonly": False, "gpu": False})
    room = socket.CMSG_SPACE(4)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:

        def lease() -> bytes:
            sock.send(get)
            packet, ancillary, _, _ = sock.recvmsg(1 << 16, room)
            os.close(struct.unpack("i", ancillary[0][2])[0])
            return packet

        sock.connect(path)
        sock.send(msgpack.encode({"op": "hello", "id": 0, "version": 1, "client": "pairs"}))
        sock.recv(1 << 16)
        region = msgpack.decode(lease())["region"]
        release = msgpack.encode({"op": "release", "regions": [region] * _LEASES})
        print("connected", flush=True)
        for line in sys.stdin:
            done, end = 0, perf_counter() + float(line)
            while perf_counter() < end:
                for _ in range(_LEASES):
                    lease()
                sock.send(release)
                done += _LEASES
            print(done, flush=True)


class Crowd:
    """Processes that ask a broker at once, on all cores."""

    def __init__(self, path: str, cores: set[int], stack: ExitStack) -> None:
        self._path, self._cores, self._stack = path, cores, stack

    @functools.cached_property
    def _clients(self) -> list[subprocess.Popen[str]]:
        clients = [
            self._stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-P", __file__, "client", self._path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(_CLIENTS)
        ]
        for client in clients:
            os.sched_setaffinity(client.pid, self._cores)
            self._answer(client)
        return clients

    def _answer(self, client: subprocess.Popen[str]) -> str:
        assert client.stdout is not None
        return client.stdout.readline()

    def batch(self, count: int) -> int:
        """What so many requests take at the rate of all clients in _SECONDS."""
        for client in self._clients:
            print(_SECONDS, file=client.stdin, flush=True)
        done = sum(int(self._answer(client)) for client in self._clients)
        return round(1e9 * count * _SECONDS / done)


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

    @functools.cache
    def thousand() -> list[str]:
        names = [f"thousand/{number}" for number in range(1000)]
        for name in names:
            broker.allocate(name, 4096, device="cpu").close()
        return names

    def thousand_at_once() -> None:
        for region in broker.get_many(thousand(), gpu=False):
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
        "get_many of 1,000": _loop(thousand_at_once),
    }


if __name__ == "__main__":
    main()
