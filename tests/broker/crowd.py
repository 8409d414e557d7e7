"""How long one user's ``get`` takes beside a crowd of another user's connections, and what the
crowd takes of the broker's memory.

A program, which prints a line of JSON for each kind of crowd, since times depend on the machine:
``python tests/broker/crowd.py [--connections 512] [--gets 1000] [--regions 1000] [--priority -15]
[KIND ...]``. Needs root, to be several users. The crowd knows the protocol's page and nothing else.

The broker's longest turn, and pass of its loop, are in its thread's own time, which other processes
do not make longer: who is served next waits for the pass under way and for one turn of each user.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack

from brokers import BROKER_UID, Broker, Template, longest, running
from rawclient import RawClient

HOSTILE, VICTIM = 40001, 40002
#: Connections of one of the crowd's processes.
_EACH = 200
_ABSENT = [f"absent/{number:05}" for number in range(4096)]
_METADATA = bytes(4096)


def _many(names: list[str]) -> dict[str, Any]:
    return {"op": "get_many", "names": names, "readonly": True, "gpu": False}


#: What each kind of crowd asks, again and again, and whether it reads the replies.
KINDS: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "quiet": ([], True),
    "absent names": ([_many(_ABSENT)], True),
    "metadata, never read": ([_many(["hostile/metadata"] * 3600)], False),
    "absent names, never read": ([_many(_ABSENT)], False),
    "gets": ([{"op": "get", "name": "hostile/metadata", "readonly": True, "gpu": False}], True),
    "lists": ([{"op": "list", "prefix": "", "after": ""}], True),
    "many leases": (
        [
            _many([f"hostile/{number}" for number in range(1000)]),
            {"op": "release", "regions": list(range(1, 4097))},
        ],
        True,
    ),
    "watchers": ([{"op": "watch", "prefix": ""}, {"op": "status"}], True),
    "nonsense": ([{"op": "nothing of the kind"}], True),
    "connects and closes": ([], False),
}


def _as_user(uid: int, work: Callable[[], None]) -> int:
    """Do some work as a user in a process of its own, until it is killed; its number."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def _come_and_go(path: str, ready: int) -> None:
    """Connect and close, as fast as it goes."""
    os.write(ready, b"r")
    while True:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock,
            contextlib.suppress(ConnectionError),
        ):
            sock.connect(path)


def _be_hostile(path: str, kind: str, count: int, ready: int) -> None:
    if kind == "connects and closes":
        _come_and_go(path, ready)
    requests, reads = KINDS[kind]
    packets = [
        msgpack.packb(request if request["op"] == "release" else {"id": 1, **request})
        for request in requests
    ]
    poll = select.epoll()
    clients: dict[int, RawClient] = {}
    turns: dict[int, Iterator[bytes]] = {}

    def join() -> None:
        client = RawClient(path)
        client.sock.setblocking(False)
        number = client.sock.fileno()
        clients[number] = client
        turns[number] = itertools.cycle(packets)
        if packets:
            poll.register(number, select.EPOLLIN * reads | select.EPOLLOUT)

    for _ in range(count):
        join()
    os.write(ready, b"r")
    while True:
        for number, events in poll.poll():
            client = clients[number]
            try:
                if events & select.EPOLLIN:
                    while True:
                        client.receive().close()
                if events & select.EPOLLOUT:
                    client.sock.send(next(turns[number]))
            except BlockingIOError:
                continue
            except ConnectionError:  # the broker has had enough of it
                client.close()
                del clients[number], turns[number]
                join()


def _be_victim(path: str, gets: int, out: int) -> None:
    taken = []
    with RawClient(path, timeout=120) as client:
        client.allocate("victim").close()
        for _ in range(gets):
            start = time.perf_counter_ns()
            client.get("victim").close()
            taken.append((time.perf_counter_ns() - start) / 1e6)
            time.sleep(0.001)
    start = time.perf_counter_ns()
    with RawClient(path, timeout=120):
        connected = (time.perf_counter_ns() - start) / 1e6
    os.write(out, json.dumps([[round(one, 3) for one in taken], connected]).encode())


def _resident(pid: int) -> float:
    """MiB of a process's memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


@contextmanager
def crowd(path: str, kind: str, connections: int) -> Iterator[None]:
    """So many connections that ask what a kind of crowd asks, again and again."""
    read, write = os.pipe()
    children = []
    try:
        for start in range(0, connections, _EACH):
            count = min(_EACH, connections - start)

            def work(count: int = count) -> None:
                _be_hostile(path, kind, count, write)

            children.append(_as_user(HOSTILE, work))
        for _ in children:
            os.read(read, 1)
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def trial(broker: Broker, kind: str, connections: int, gets: int, priority: int) -> dict[str, Any]:
    """What one crowd does to another user."""
    os.setpriority(os.PRIO_PROCESS, broker.pid, priority)
    assert broker.setup.turns is not None
    Path(broker.setup.turns).write_bytes(b"")
    before = peak = _resident(broker.pid)
    read, write = os.pipe()
    answer = b""
    with crowd(broker.path, kind, connections):
        time.sleep(1.0)  # what is asked gets under way
        victim = _as_user(VICTIM, lambda: _be_victim(broker.path, gets, write))
        os.setpriority(os.PRIO_PROCESS, victim, priority)
        os.close(write)
        done = os.pidfd_open(victim)
        while not select.select([done], [], [], 0.05)[0]:
            peak = max(peak, _resident(broker.pid))
        os.set_blocking(read, False)  # the crowd has the other end too
        with contextlib.suppress(BlockingIOError):
            answer = os.read(read, 1 << 20)
        os.close(read)
        os.close(done)
        os.waitpid(victim, 0)
        peak = max(peak, _resident(broker.pid))
    found: dict[str, Any] = {"crowd": kind, "connections": connections}
    if answer:
        taken, connected = json.loads(answer)
        taken.sort()
        found |= {
            "gets": len(taken),
            "median_ms": round(statistics.median(taken), 3),
            "p99_ms": round(taken[len(taken) * 99 // 100], 3),
            "worst_ms": round(taken[-1], 3),
            "connect_ms": round(connected, 3),
        }
    else:
        found["gets"] = None
    found |= longest(broker.setup.turns)
    return found | {"broker_mib": round(peak, 1), "of_the_crowd_mib": round(peak - before, 1)}


def main() -> None:
    """Try each kind against a broker of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=512)
    parser.add_argument("--gets", type=int, default=1000)
    parser.add_argument("--regions", type=int, default=1000)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument(
        "--priority", type=int, default=0, help="nice value of the broker and the victim"
    )
    args = parser.parse_args()
    template = Template()
    for kind in args.kinds or KINDS:
        with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as turns:
            Path(turns.name).chmod(0o666)
            setup = {"uid": BROKER_UID, "options": {"mode": 0o666}, "turns": turns.name}
            with running(template, Path(folder), **setup) as broker:
                with broker.client() as client:
                    usual = {"mode": 0o666, "metadata": _METADATA}
                    client.allocate("hostile/metadata", **usual).close()
                    for number in range(args.regions):
                        client.allocate(f"hostile/{number}", mode=0o666).close()
                found = trial(broker, kind, args.connections, args.gets, args.priority)
                print(json.dumps(found), flush=True)
    template.close()


if __name__ == "__main__":
    main()
