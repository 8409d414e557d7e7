"""Measure a broker and clients in separate namespaces, beside the same in one.

Each container has user, mount, PID, IPC, network, UTS and cgroup namespaces of its own, and shares
only the socket's folder. Two clients share a region, with CUDA and without. Then clients are killed
at random moments, and the time is taken until the broker has ended their leases and freed the
memory. Finally only exporters of bound regions are killed, while importers hold the regions.
Making the namespaces needs root.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import gdrpy
import machine
from gdrpy import cuda
from gdrpy.broker.unix import peer_credentials
from results import FORMAT, SIMULATED_NOTE, add_arguments, save
from sharedweights_process import Process

NAMESPACES = (
    *("unshare", "--user", "--map-root-user", "--mount", "--ipc", "--net", "--uts", "--cgroup"),
    *("--pid", "--fork", "--kill-child", "--mount-proc"),
)
_WORKER = str(Path(__file__).with_name("containers_worker.py"))
_MIB = 1 << 20
#: The longest time that clients work before they are killed, in seconds, without and with CUDA.
_WORK, _WORK_CUDA = 0.03, 1.5
#: The longest time between the kills of the two clients, in seconds.
_BETWEEN = 0.005
#: Seconds for which the broker may take to notice an end.
_PATIENCE = 60


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/containers.py", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="of clients without CUDA (1000)")
    parser.add_argument("--kills-cuda", type=int, default=20, help="of clients with CUDA (20)")
    parser.add_argument("--rounds", type=int, default=5, help="of each comparison (5)")
    parser.add_argument("--seed", type=int, default=1)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    chance = random.Random(options.seed)
    samples: dict[str, dict[str, list[float]]] = {}
    places: list[tuple[str, Sequence[str]]]
    places = [("containers", NAMESPACES), ("beside each other", ())]
    for _ in range(options.rounds):
        places.reverse()  # so that neither always comes first
        for place, words in places:
            with _pods(words) as (_, one, other):
                for row, value in _shared(one, other).items():
                    samples.setdefault(row, {}).setdefault(place, []).append(value)
    rows = [_row(what, found) for what, found in samples.items()]
    print(f"{'':31}{'containers':>11}{'beside':>9}{'ratio':>8}")
    for row in rows:
        print(f"{row['what']:31}{row['containers']:11.3g}{row['beside']:9.3g}{row['ratio']:8.3f}")
    kills = []
    for bound in (False, True):
        for gpu, count, work in (
            (False, options.kills, _WORK),
            (True, options.kills_cuda, _WORK_CUDA),
        ):
            with _pods(NAMESPACES) as (broker, one, other):
                kills.append(_killed(broker, one, other, gpu, bound, count, work, chance))
            told = {key: value for key, value in kills[-1].items() if key != "seconds"}
            print(", ".join(f"{key} {value}" for key, value in told.items()))
    result = {
        "format": FORMAT,
        "note": SIMULATED_NOTE if cuda.simulated() else None,
        "header": machine.describe((), options.commit)
        | {"command": f"python benchmarks/containers.py --kills {options.kills}"},
        "modules": ["containers"],
        "quick": False,
        "containers": rows,
        "kills": kills,
    }
    print(save(result, options.output))
    return int(any(one["leases_left"] or one["descriptors_left"] for one in kills))


@contextmanager
def _pods(words: Sequence[str]) -> Iterator[tuple[gdrpy.Broker, Process, Process]]:
    """A connection to a broker in a container, and two clients, each in another one."""
    with tempfile.TemporaryDirectory(prefix="gdrpy-bench-") as folder, ExitStack() as stack:
        path = f"{folder}/broker.sock"

        def start(name: str, *command: str) -> Process:
            made = Process(name, *command, before=words)
            stack.callback(made.kill)  # unshare ignores SIGTERM
            made.hear()
            return made

        start("the broker", "-m", "gdrpy", "serve", "--json", "--keeper", "none", "--socket", path)
        pods = [start(name, _WORKER, path) for name in ("one client", "the other client")]
        yield stack.enter_context(gdrpy.connect(path)), pods[0], pods[1]


def _shared(one: Process, other: Process) -> dict[str, float]:
    """Microseconds and GB/s of two clients that share a region, which the first one makes."""
    one.ask("make", "shared", 64 * _MIB)
    found: dict[str, float] = {}
    for gpu in (False, True):
        words = "with CUDA" if gpu else "without CUDA"
        taken = other.ask("measure", "shared", gpu)
        found |= {f"{what}, {words}": value for what, value in taken.items()}
    if not one.ask("check", "shared"):
        raise SystemExit("benchmarks/containers.py: the first client found wrong bytes")
    return found


def _row(what: str, found: dict[str, list[float]]) -> dict[str, Any]:
    inside, beside = (median(found[place]) for place in ("containers", "beside each other"))
    ratio = inside / beside
    return {
        "what": what,
        "containers": inside,
        "beside": beside,
        "ratio": ratio,
        "samples": found,
    }


def _killed(
    broker: gdrpy.Broker,
    one: Process,
    other: Process,
    gpu: bool,
    bound: bool,
    count: int,
    work: float,
    chance: random.Random,
) -> dict[str, Any]:
    """Kill an exporter and an importer at random, ``count`` clients in all.

    An exporter that its region is ``bound`` to is killed alone, when the importer has the region.
    """
    before, seconds = _descriptors(broker), []
    for number in range(0, count, 2):
        pods = [(one, "export bound" if bound else "export"), (other, "import")]
        for pod, role in pods:
            pod.ask("fork", role, f"killed/{number}", gpu)
        if bound:
            _wait(lambda: broker.status()["leases"] == 2, f"the importer {number} has no region")
        time.sleep(chance.random() * work)
        if bound:
            killed = one.ask("kill")
        else:
            chance.shuffle(pods)
            pods[0][0].ask("kill")
            time.sleep(chance.random() * _BETWEEN)
            killed = pods[1][0].ask("kill")
        _wait(lambda: not broker.status()["leases"], f"the leases of round {number} stay")
        for info in broker.list():
            broker.delete(info.name)
        _wait(
            lambda: not any(broker.status()["used"].values()), f"the memory of round {number} stays"
        )
        seconds.append(time.monotonic() - killed)
        if bound:
            other.ask("kill")
    words = "with CUDA" if gpu else "without CUDA"
    return {
        "clients": f"exporters of bound regions, {words}" if bound else words,
        "kills": len(seconds) if bound else count,
        "median_ms": round(1e3 * median(seconds), 2),
        "worst_ms": round(1e3 * max(seconds), 2),
        "leases_left": broker.status()["leases"],
        "descriptors_left": _descriptors_left(broker, before),
        "seconds": seconds,
    }


def _wait(done: Callable[[], bool], otherwise: str) -> None:
    """Wait until the broker has noticed an end. Ends the program if it does not."""
    deadline = time.monotonic() + _PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit(f"benchmarks/containers.py: {otherwise} for {_PATIENCE} s")
        time.sleep(0.0005)


def _descriptors_left(broker: gdrpy.Broker, before: int) -> int:
    """How many the broker has more than before: its thread that frees memory closes the last."""
    deadline = time.monotonic() + _PATIENCE
    while (left := _descriptors(broker) - before) > 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    return left


def _descriptors(broker: gdrpy.Broker) -> int:
    """How many descriptors the broker has open."""
    sock = broker._connection.transport._sock
    assert sock is not None
    return len(list(Path(f"/proc/{peer_credentials(sock)[0]}/fd").iterdir()))


if __name__ == "__main__":
    sys.exit(main())
