"""Kill the processes at both ends of a named channel at random moments, and count what went wrong.

A producer without CUDA pushes records whose content follows from their number, and a kernel of
another process holds each against it. First producers are killed, then kernel's processes; a
successor goes on each time. On the simulated GPU a thread stands in for the kernel.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import gdrpy
import machine
from channelkills_child import (
    BATCH,
    CAPACITY,
    ENDS,
    FOUND,
    NAME,
    NBYTES,
    PATIENCE,
    TAKEN,
    WRONG,
    compiled,
    launch,
)
from gdrpy import cuda
from gdrpy.broker.unix import peer_credentials
from gdrpy.channel import KernelEnd
from results import FORMAT, SIMULATED_NOTE, add_arguments, save

_CHILD = str(Path(__file__).with_name("channelkills_child.py"))
#: The part of the kills that kernel's processes are for: each must make a CUDA context.
_CONSUMERS = 0.1
#: The longest time for which records pass before a kill, in seconds.
_LIFE = 0.02


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/channelkills.py", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="of both kinds (1000)")
    parser.add_argument("--seed", type=int, default=1)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    chance = random.Random(options.seed)
    consumers = max(1, round(options.kills * _CONSUMERS))
    with gdrpy.broker.temporary() as socket, _nursery(socket) as start, cuda.context(0):
        kills = [
            _producers(socket, start, chance, max(1, options.kills - consumers)),
            _consumers(socket, start, chance, consumers),
        ]
    for one in kills:
        print(", ".join(f"{key} {value}" for key, value in one.items() if key != "seconds"))
    result = {
        "format": FORMAT,
        "note": SIMULATED_NOTE if cuda.simulated() else None,
        "header": machine.describe((), options.commit)
        | {"command": f"python benchmarks/channelkills.py --kills {options.kills}"},
        "modules": ["channelkills"],
        "quick": False,
        "kills": kills,
    }
    print(save(result, options.output))
    wrong = ("torn", "lost", "doubled", "stuck", "descriptors_left", "leases_left", "bytes_left")
    return int(any(one[key] for one in kills for key in wrong))


def _producers(
    socket: str, start: Callable[[str], int], chance: random.Random, count: int
) -> dict[str, Any]:
    """Kill producers, while the kernel is one of this process."""
    with gdrpy.connect(socket) as broker, broker.allocate(FOUND, 4096) as found:
        found.write(bytes(found.nbytes))
        _warm(broker)
        before = _Left(broker)
        seconds, stuck = _kill_producers(broker, start, chance, count, found)
        told = _verdict("producers", len(seconds), found, _counts(broker))
        # The kernel takes nothing again: its process lives.
        told |= {"doubled": told.pop("taken_again"), "stuck": stuck}
        gdrpy.channel.delete(broker, NAME)
        return told | before.left(broker) | _seconds(seconds)


def _kill_producers(
    broker: gdrpy.Broker,
    start: Callable[[str], int],
    chance: random.Random,
    count: int,
    found: gdrpy.Region,
) -> tuple[list[float], int]:
    """Seconds from each kill to the end of the kernel, and how many kernels did not end."""
    seconds: list[float] = []
    image = compiled()
    pid = start("produce")
    with KernelEnd(broker, NAME, wait=PATIENCE) as end:
        for number in range(count):
            end.wait(PATIENCE)
            has_ended = launch(end, found, image)
            time.sleep(chance.random() * _LIFE)
            _kill(pid)
            killed = time.monotonic()
            if not _came(has_ended):
                return seconds, 1
            seconds.append(time.monotonic() - killed)
            if number + 1 < count:
                pid = start("produce")
        # The last producer's records may have come after the end that the kernel saw.
        return seconds, _left_over(end, found, image)


def _left_over(end: KernelEnd, found: gdrpy.Region, image: bytes) -> int:
    """Have the kernel take what is left, if there is anything; how many kernels did not end."""
    try:
        more = end.wait(0)
    except gdrpy.Timeout:  # nothing is left
        more = False
    return int(more and not _came(launch(end, found, image)))


def _consumers(
    socket: str, start: Callable[[str], int], chance: random.Random, count: int
) -> dict[str, Any]:
    """Kill kernel's processes, while one producer pushes."""
    with gdrpy.connect(socket) as broker, broker.get(FOUND) as found:
        found.write(bytes(found.nbytes))
        _warm(broker)
        before = _Left(broker)
        producer = start("produce")
        seconds, stuck = _kill_consumers(broker, start, chance, count)
        _kill(producer)
        with KernelEnd(broker, NAME, wait=PATIENCE) as end:
            stuck += _left_over(end, found, compiled())
        del end
        told = _verdict("kernel's processes", len(seconds), found, _counts(broker))
        # Records that were taken and not released may come twice: at most a ring for each kill.
        again = told["taken_again"]
        told |= {"doubled": max(0, again - CAPACITY * count), "stuck": stuck}
        gdrpy.channel.delete(broker, NAME)
        return told | before.left(broker) | _seconds(seconds)


def _kill_consumers(
    broker: gdrpy.Broker, start: Callable[[str], int], chance: random.Random, count: int
) -> tuple[list[float], int]:
    """Seconds from each kill until the place is free, and how many kernels took nothing."""
    seconds: list[float] = []
    with broker.get(f"{NAME}/host", gpu=False, wait=PATIENCE) as host:
        for _ in range(count):
            head = host.cpu.load(0, 8)
            pid = start("consume")
            if not _came(lambda head=head: host.cpu.load(0, 8) != head):  # type: ignore[misc]
                return seconds, 1
            time.sleep(chance.random() * _LIFE)
            _kill(pid)
            killed = time.monotonic()
            _came(lambda: not any(one.name == f"{NAME}/kernel" for one in broker.list(NAME)))
            seconds.append(time.monotonic() - killed)
    return seconds, 0


def _warm(broker: gdrpy.Broker) -> None:
    """Have this process make what it keeps."""
    with (
        gdrpy.Channel(NBYTES, CAPACITY, broker=broker, name="warm") as channel,
        KernelEnd(broker, "warm") as end,
    ):
        assert end.ptr
        channel.push(bytes(NBYTES))
    gdrpy.channel.delete(broker, "warm")


def _counts(broker: gdrpy.Broker) -> tuple[int, int]:
    """How many records were pushed, and counted as taken."""
    with gdrpy.Channel(NBYTES, CAPACITY, broker=broker, name=NAME) as channel:
        return channel.pushed, channel.popped


def _verdict(what: str, kills: int, found: gdrpy.Region, counts: tuple[int, int]) -> dict[str, Any]:
    """The kernel's counts, beside the numbers of records that were pushed and taken."""
    pushed, popped = counts
    # The kernel tells of records before it releases them. Its stand-in cannot, and may be killed.
    untold = BATCH * kills if cuda.simulated() and what != "producers" else 0
    taken, wrong, ends = (found.cpu.load(offset, 8) for offset in (TAKEN, WRONG, ENDS))
    return {
        "killed": what,
        "kills": kills,
        "records": pushed,
        "ends": ends,
        "torn": wrong,
        "lost": pushed - popped + max(0, pushed - taken - untold),
        "taken_again": max(0, taken - pushed),
    }


def _seconds(seconds: list[float]) -> dict[str, Any]:
    return {
        "median_ms": round(1e3 * median(seconds), 2),
        "worst_ms": round(1e3 * max(seconds), 2),
        "seconds": seconds,
    }


class _Left:
    """The broker's descriptors, leases and bytes, to compare with later ones."""

    def __init__(self, broker: gdrpy.Broker) -> None:
        self._before = self._now(broker)

    def left(self, broker: gdrpy.Broker) -> dict[str, int]:
        """Descriptors, leases and bytes that it has more, once it has noticed all ends."""
        names = ("descriptors_left", "leases_left", "bytes_left")

        def more() -> list[int]:
            return [now - then for now, then in zip(self._now(broker), self._before, strict=True)]

        _came(lambda: not any(one > 0 for one in more()))
        return dict(zip(names, (max(0, one) for one in more()), strict=True))

    @staticmethod
    def _now(broker: gdrpy.Broker) -> tuple[int, int, int]:
        sock = broker._connection.transport._sock
        assert sock is not None
        folders = Path(f"/proc/{peer_credentials(sock)[0]}/fd"), Path("/proc/self/fd")
        status = broker.status()
        descriptors = sum(len(list(folder.iterdir())) for folder in folders)
        return descriptors, status["leases"], sum(status["used"].values())


def _came(done: Callable[[], bool]) -> bool:
    """Wait until something is so; whether it was in time."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0002)
    return True


def _kill(pid: int) -> None:
    """Kill another's child, and wait until it is gone."""
    descriptor = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        select.select([descriptor], [], [], PATIENCE)
    finally:
        os.close(descriptor)


@contextmanager
def _nursery(socket: str) -> Iterator[Callable[[str], int]]:
    """A function that starts a process of a role, and returns its number."""
    with subprocess.Popen(
        [sys.executable, _CHILD, socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def start(role: str) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{role}\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield start


if __name__ == "__main__":
    sys.exit(main())
