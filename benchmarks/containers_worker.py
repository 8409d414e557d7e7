"""A client of benchmarks/containers.py: it obeys lines, and forks clients that are to be killed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from typing import Any

import gdrpy

_MIB = 1 << 20
_WORD = 64
#: Samples, and calls of each; samples of large copies.
_SMALL, _LARGE = (200, 50), 20
#: Bytes of a region of clients that are killed.
_KILLED = 64 * _MIB


class Worker:
    """Each method is an action, and returns its answer."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._child = 0
        self._regions: dict[str, gdrpy.BrokerRegion] = {}

    def make(self, name: str, nbytes: int) -> None:
        """Have a region, without CUDA."""
        self._broker = gdrpy.connect(self._path)
        self._regions[name] = self._broker.allocate(name, nbytes, gpu=False)

    def measure(self, name: str, gpu: bool) -> dict[str, float]:
        """Microseconds of words and GB/s of the whole region, which ends as its pattern."""
        with gdrpy.connect(self._path) as broker, broker.get(name, gpu=gpu) as region:
            if gpu:
                assert region.ptr
            data = bytes(itertools.islice(itertools.cycle(range(251)), region.nbytes))
            word, into = data[:_WORD], bytearray(region.nbytes)
            small = memoryview(into)[:_WORD]
            found = {
                "get and close, us": 1e6 * _seconds(lambda: broker.get(name, gpu=gpu).close(), 100),
                "write 64 B, us": 1e6 * _seconds(lambda: region.write(word), *_SMALL),
                "read 64 B, us": 1e6 * _seconds(lambda: region.readinto(small), *_SMALL),
            }
            for what, act in {
                "write 64 MiB, GB/s": lambda: region.write(data),
                "read 64 MiB, GB/s": lambda: region.readinto(into),
            }.items():
                found[what] = region.nbytes / _seconds(act, _LARGE) / 1e9
            if into != data:
                raise SystemExit("benchmarks/containers_worker.py: read wrong bytes")
        return found

    def check(self, name: str) -> bool:
        """Whether a region has the pattern that the other client wrote."""
        region = self._regions[name]
        return region.read() == bytes(itertools.islice(itertools.cycle(range(251)), region.nbytes))

    def fork(self, role: str, name: str, gpu: bool) -> None:
        """Begin a client that works until it is killed."""
        self._child = os.fork()
        if not self._child:
            try:
                _work(self._path, role, name, gpu)
            finally:
                os._exit(1)

    def kill(self) -> float:
        """Kill that client; when it was told to end."""
        now = time.monotonic()
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        return now


def _work(path: str, role: str, name: str, gpu: bool) -> None:
    with gdrpy.connect(path) as broker:
        if role == "import":
            region = broker.get(name, gpu=gpu, wait=60)
        else:
            grace = 0 if role == "export bound" else None
            region = broker.allocate(name, _KILLED, gpu=gpu, grace=grace)
        with suppress(gdrpy.NotFound):  # its exporter has ended
            for turn in itertools.count():
                region.write(turn.to_bytes(8, "little") * 512, offset=(turn % 1000) * 4096)
                if role == "import" and not turn % 3:
                    broker.get(name, gpu=gpu).close()
        signal.pause()


def _seconds(act: Callable[[], object], count: int, calls: int = 1) -> float:
    """The median time of a call, of ``count`` samples of some calls each."""
    samples = []
    for _ in range(count):
        began = time.perf_counter()
        for _ in range(calls):
            act()
        samples.append((time.perf_counter() - began) / calls)
    return median(samples)


def _main() -> None:
    worker = Worker(sys.argv[1])
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        action, *arguments = json.loads(line)
        answer: Any = getattr(worker, action)(*arguments)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main()
