"""The broker beside a bare server of the same transport, both on one core, and with 16 clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import gdrpy
from broker_client import BareClient, Descriptor, WireClient
from gdrpy import cuda
from gdrpy.memory import vmm
from harness import REQUEST_RATE_UNIT, Contender, Measurement, Session, Topic

MODULE = "broker"

ROUND_TRIP = "one client, one core"
THROUGHPUT = "16 clients"
COLD = "cold process to first load"
FIRST = "first get of a process, with its CPU view"
MANY = "1,000 regions in one call"
LISTING = "list 4,000 regions"
LS, LS_JSON = "gdrpy ls", "gdrpy ls --json"
BARE = "bare server"
BARE_C = "bare server, packets in C"
GET = "get with its CPU view"
BROKER = "broker"
ALLOCATE = "allocate 2 MiB of GPU memory"
CREATE_AND_EXPORT = "cuMemCreate and export"
BARE_PYTHON = "bare Python"
CONNECT_AND_GET = "connect and get"

_NO_BYTE_CODE = "PYTHONDONTWRITEBYTECODE"
_FOLDER = Path(__file__).resolve().parent
_NBYTES = 2 << 20
#: Seconds within which the driver has given freed memory back.
_FREED = 10
_CLIENTS = 16
_REGIONS = 1000
_LISTED = 4000
#: Regions of one batch that are open at a time: their descriptors are.
_OPEN = 100


def run(session: Session) -> None:
    """Measure the broker into the session."""
    core = {min(os.sched_getaffinity(0))}
    with ExitStack() as undo:
        folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="gdrpy-bench-"))
        with _on(core):
            bare = undo.enter_context(_served(f"{folder}/bare.sock", _BARE_SERVER))
            path = undo.enter_context(_served(f"{folder}/broker.sock", _BROKER))
        broker = undo.enter_context(gdrpy.connect(path))
        kept = undo.enter_context(broker.allocate("bench", _NBYTES, gpu=False))
        kept.cpu.store(0, 1)
        with _on(core):
            _round_trips(session, bare, path, broker)
            _allocations(session, path)
        _many(session, broker)
        _listing(session, path, broker)
        _cold(session, path)
        _throughput(session, bare, path)


_BARE_SERVER = [str(_FOLDER / "echo_server.py")]
_BROKER = ["-m", "gdrpy", "serve", "--json", "--socket"]


@contextmanager
def _on(cores: set[int]) -> Iterator[None]:
    """Run this process, and processes that it starts meanwhile, on these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _served(path: str, program: list[str]) -> Iterator[str]:
    """A server at a path, once it is ready."""
    server = subprocess.Popen(
        [sys.executable, *program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        if not server.stdout.readline():
            raise RuntimeError(f"{program} did not start")
        _let_go(server.pid)
        yield path
    finally:
        server.stdin.close()
        server.terminate()
        server.wait()
        server.stdout.close()


def _let_go(server: int) -> None:
    """Let a server's children (a broker's keeper) run on any core: no client waits for them."""
    everywhere = set(range(os.cpu_count() or 1))
    for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        os.sched_setaffinity(int(child), everywhere)


class Batched:
    """Something done many times, :data:`_OPEN` at a time; closing is not timed."""

    def __init__(self, do: Callable[[], Any], settle: Callable[[], object]) -> None:
        self._do = do
        self._settle = settle

    def once(self) -> Any:
        return self._do()

    def batch(self, calls: int) -> int:
        taken = 0
        do, now = self._do, time.perf_counter_ns
        while calls > 0:
            count = min(calls, _OPEN)
            made = []
            start = now()
            for _ in range(count):
                made.append(do())
            taken += now() - start
            for one in made:
                one.close()
            self._settle()
            calls -= count
        return taken


def _is_answered(timed: Any) -> bool:
    """A failure raises."""
    timed.once().close()
    return True


def _round_trips(session: Session, bare: str, path: str, broker: gdrpy.Broker) -> None:
    with BareClient(bare) as sockets, WireClient(bare) as packets:

        def settle() -> None:
            broker.status()

        def right(timed: Any) -> bool:
            with timed.once() as region:
                return bool(region.cpu.load(0) == 1)

        session.compare(
            Topic(MODULE, ROUND_TRIP),
            [
                Contender(
                    BARE,
                    "one request, a reply with a descriptor: msgpack and Python's sockets at both "
                    "ends, SEQPACKET; the descriptor closed",
                    Batched(sockets.get, lambda: None),
                    _is_answered,
                ),
                Contender(
                    BARE_C,
                    "the same server, gdrpy's packets at the client's end",
                    Batched(packets.get, lambda: None),
                    _is_answered,
                ),
                Contender(
                    GET,
                    "broker.get(name, gpu=False), mapped; not counting region.close()",
                    Batched(lambda: broker.get("bench", gpu=False), settle),
                    right,
                ),
                Contender(
                    "connect and get with its CPU view",
                    "gdrpy.connect(path), then the same; not counting the closing",
                    Batched(lambda: _Connected(path), settle),
                    _is_answered,
                ),
                Contender(
                    "allocate host memory with its CPU view",
                    "broker.allocate(None, 2 MiB, device='cpu'); not counting region.close()",
                    Batched(lambda: broker.allocate(None, _NBYTES, device="cpu"), settle),
                    _is_answered,
                ),
            ],
        )


class _Connected:
    """A separate connection, and a region that came through it."""

    def __init__(self, path: str) -> None:
        self._broker = gdrpy.connect(path)
        self._region = self._broker.get("bench", gpu=False)

    def close(self) -> None:
        self._region.close()
        self._broker.close()


def _allocations(session: Session, path: str) -> None:
    free = _free_memory()

    def settle() -> None:
        """Wait until memory is freed, which takes longer than allocating, so as not to time it."""
        deadline = time.monotonic() + _FREED
        while (left := _free_memory()) < free:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"the GPU has {left} bytes free, and had {free} before the allocations that "
                    f"were freed {_FREED} s ago: measure while no other process uses the GPU"
                )
            time.sleep(0.001)

    with WireClient(path) as wire:
        found = session.compare(
            Topic(MODULE, ALLOCATE),
            [
                Contender(
                    BROKER,
                    "an allocate request without a name until the descriptor is there",
                    Batched(wire.allocate, settle),
                    _is_answered,
                ),
                Contender(
                    CREATE_AND_EXPORT,
                    "the driver's calls in this process, without a context; the handle released",
                    Batched(lambda: Descriptor(vmm.create_export(_NBYTES)), settle),
                    _is_answered,
                ),
            ],
        )
        session.derive_difference(found[BROKER], found[CREATE_AND_EXPORT])


def _free_memory() -> int:
    """Free bytes of GPU 0."""
    free, _ = cuda.call("cuMemGetInfo")
    return int(free)


def _many(session: Session, broker: gdrpy.Broker) -> None:
    count = 20 if session.quick else _REGIONS
    names = [f"many/{number}" for number in range(count)]
    kept = [broker.allocate(name, 4096, device="cpu", cpu=True) for name in names]
    for region in kept:
        region.close()
    topic = Topic(MODULE, MANY if count == _REGIONS else f"{count} regions in one call", unit="ms")
    samples = []
    for _ in range(2 if session.quick else 20):
        start = time.perf_counter_ns()
        regions = broker.get_many(names, gpu=False)
        samples.append(topic.sample(time.perf_counter_ns() - start))
        for region in regions:
            region.close()
    for name in names:
        broker.delete(name)
    method = "broker.get_many(names, gpu=False), each mapped; not counting the closing"
    session.add(Measurement(topic, "gdrpy", method, samples, verified=len(regions) == count))


def _listing(session: Session, path: str, broker: gdrpy.Broker) -> None:
    """All regions of a broker, told to a client, to a person and to a program."""
    count = 20 if session.quick else _LISTED
    names = [f"listed/{number:05}" for number in range(count)]
    for name in names:
        broker.allocate(name, 4096, device="cpu").close()
    topic = Topic(MODULE, LISTING if count == _LISTED else f"list {count} regions", unit="ms")
    command = [sys.executable, "-m", "gdrpy", "ls", "listed/", "--socket", path]
    ways: dict[str, Callable[[], list[str | None]]] = {
        "broker.list()": lambda: [info.name for info in broker.list("listed/")],
        LS: lambda: _lines(command, names),
        LS_JSON: lambda: _lines([*command, "--json"], names),
    }
    for way, told in ways.items():
        samples, right = [], []
        for _ in range(2 if session.quick else 20):
            start = time.perf_counter_ns()
            found = told()
            samples.append(topic.sample(time.perf_counter_ns() - start))
            right.append(found == names)
        method = f"{way} from its start to its end" + ", byte code cached" * (LS in way)
        session.add(Measurement(topic, way, method, samples, verified=all(right)))
    for name in names:
        broker.delete(name)


def _lines(command: list[str], names: list[str]) -> list[str | None]:
    """The names that a command's output contains, in its order."""
    done = subprocess.run(command, env=_cached(), check=True, capture_output=True, text=True)
    wanted = set(names)
    return [word for word in done.stdout.replace('"', " ").split() if word in wanted]


def _cached() -> dict[str, str]:
    """This process's environment, with which Python keeps byte code."""
    return {name: value for name, value in os.environ.items() if name != _NO_BYTE_CODE}


_COLD_GET = """
import gdrpy, time
broker = gdrpy.connect({path!r})
start = time.perf_counter_ns()
with broker.get("bench", gpu=False) as region:
    taken = time.perf_counter_ns() - start
    assert region.cpu.load(0) == 1
print(taken)
"""


def _cold(session: Session, path: str) -> None:
    """A fresh process until its first load from a region, and an idle process, in turns."""
    topic = Topic(MODULE, COLD, unit="ms")
    programs = {BARE_PYTHON: "pass", CONNECT_AND_GET: _COLD_GET.format(path=path)}
    samples: dict[str, list[float]] = {way: [] for way in programs}
    first: list[float] = []
    for _ in range(2 if session.quick else 40):
        for way, program in programs.items():
            start = time.perf_counter_ns()
            command = [sys.executable, "-c", program]
            done = subprocess.run(command, env=_cached(), check=True, capture_output=True)
            samples[way].append(topic.sample(time.perf_counter_ns() - start))
            first += [topic.sample(int(taken)) for taken in done.stdout.split()]
    method = "from starting the process to its end, byte code cached: "
    bare = Measurement(
        topic, BARE_PYTHON, method + "python -c pass", samples[BARE_PYTHON], verified=True
    )
    full = Measurement(
        topic,
        CONNECT_AND_GET,
        method + "import gdrpy, connect, get with a CPU view, one load",
        samples[CONNECT_AND_GET],
        verified=True,
    )
    session.derive_difference(session.add(full), session.add(bare))
    method = "in each of these processes: broker.get(name, gpu=False) on a fresh connection"
    session.add(Measurement(Topic(MODULE, FIRST, unit="ms"), "gdrpy", method, first, verified=True))


def _throughput(session: Session, bare: str, path: str) -> None:
    """Requests a second of 16 processes, at one server and then at the other."""
    topic = Topic(MODULE, THROUGHPUT, unit=REQUEST_RATE_UNIT)
    samples: dict[str, list[float]] = {BARE: [], BROKER: []}
    seconds = 0.05 if session.quick else 1.5
    for _ in range(2 if session.quick else 5):
        for way, where in ((BARE, bare), (BROKER, path)):
            samples[way].append(_requests_per_second(way, where, seconds) / 1e3)
    for way, method in (
        (BARE, "at the bare server"),
        (BROKER, "get at the broker; leases given back 64 at a time, which is not counted"),
    ):
        full = f"{_CLIENTS} processes with gdrpy's packets, descriptors closed: {method}"
        session.add(Measurement(topic, way, full, samples[way], verified=True))


def _requests_per_second(way: str, path: str, seconds: float) -> float:
    kind = "bare" if way == BARE else "broker"
    program = [sys.executable, str(_FOLDER / "broker_client.py"), kind, path, str(seconds)]
    clients = [
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(_CLIENTS)
    ]
    for client in clients:
        assert client.stdout is not None
        client.stdout.readline()  # it is connected
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("go\n")
        client.stdin.flush()
    total = 0.0
    for client in clients:
        told, _ = client.communicate()
        total += json.loads(told)
    return total
