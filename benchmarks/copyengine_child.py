"""The child processes of the copyengine benchmark.

``read FD NBYTES`` reads a region by the engine for the first time, timed from here, and waits for
the end of its input. ``bulk FD write|read`` copies by the engine, and ``stream write|read NBYTES``
on a CUDA stream, until killed. ``random FD NUMBER SLOT COPIES`` copies random parts of a slot of a
region. ``nursery FD SOCKET`` forks processes that copy until they are killed. Each says when it has
begun. Only ``stream`` uses CUDA.
"""

from __future__ import annotations

from time import perf_counter_ns

MAIN = perf_counter_ns()

import ctypes  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

if TYPE_CHECKING:
    from payload import Bytes

VIA = "engine"

#: The bytes of a region on either side of what processes copy before they are killed.
GUARD = 1 << 16
_REPEATS = 10
#: Seconds until a process without its first copy says where it is.
_LATE = 10.0
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


def read(fd: int, nbytes: int) -> None:
    """The first acts of a process that needs GPU memory, then the same again."""
    from gdrpy import Region

    imported = perf_counter_ns()
    region = Region.from_fd(fd, gpu=False)
    data = region.read(nbytes, 0, VIA)
    first = perf_counter_ns()

    import hashlib

    further = []
    for _ in range(_REPEATS):
        start = perf_counter_ns()
        with Region.from_fd(fd, gpu=False) as again:
            again.read(nbytes, 0, VIA)
        further.append(perf_counter_ns() - start)
    _say(
        main=[first - MAIN],
        first=[first - imported],
        further=further,
        digest=hashlib.blake2b(data).hexdigest(),
        cuda="cuda.bindings" in sys.modules,
    )
    sys.stdin.read()


def bulk(fd: int, operation: str) -> None:
    """Copy the whole region by the engine from or to registered memory, for ever."""
    import numpy as np

    import gdrpy

    region = gdrpy.Region.from_fd(fd, gpu=False)
    host = np.ones(region.nbytes, np.uint8)
    with gdrpy.register(host):
        copy = {"write": region.write, "read": region.readinto}[operation]
        copy(host, 0, VIA)
        _say()
        while True:
            copy(host, 0, VIA)


def stream(operation: str, nbytes: int) -> None:
    """Copy on a CUDA stream from or to page-locked memory, for ever: two are always queued."""
    from gdrpy import cuda

    name = {"write": "cuMemcpyHtoDAsync", "read": "cuMemcpyDtoHAsync"}[operation]
    with cuda.context(0):
        host = int(cuda.call("cuMemAllocHost", nbytes))
        ptr = int(cuda.call("cuMemAlloc", nbytes))
        ends = (ptr, host) if operation == "write" else (host, ptr)
        queue = cuda.call("cuStreamCreate", 1)
        events = [cuda.call("cuEventCreate", 0) for _ in range(2)]
        for begun in range(1 << 62):
            if begun >= len(events):
                cuda.call("cuEventSynchronize", events[begun % 2])
            if begun == len(events):
                _say()
            cuda.call(name, *ends, nbytes, queue)
            cuda.call("cuEventRecord", events[begun % 2], queue)


def random(fd: int, number: int, slot: int, copies: int) -> None:
    """Copy random parts of slot ``number`` of a region, with guard bytes on both sides."""
    import hashlib

    import numpy as np

    import gdrpy

    choice = np.random.default_rng(number)
    expected = noise(number, slot)
    buffers = np.empty(slot // 4, np.uint8), np.empty(slot // 4, np.uint8)
    wrong = 0
    with gdrpy.Region.from_fd(fd, gpu=False) as region, gdrpy.register(buffers[0]):
        for count in range(copies):
            buffer = buffers[count % 2]
            size = min(int(2 ** choice.uniform(0, 24)), buffer.size - 2)
            here = int(choice.integers(1, buffer.size - size))
            there = int(choice.integers(slot - size))
            buffer[:] = choice.integers(0, 256, buffer.size, np.uint8)
            part = buffer[here : here + size]
            region.write(part, number * slot + there, VIA)
            expected[there : there + size] = part

            kept = buffer.copy()
            there = int(choice.integers(slot - size))
            kept[here : here + size] = expected[there : there + size]
            region.readinto(part, number * slot + there, VIA)
            wrong += not np.array_equal(buffer, kept)
    _say(wrong=wrong, digest=hashlib.blake2b(expected).hexdigest())
    sys.stdin.read()


def noise(seed: int, nbytes: int) -> Bytes:
    """Random bytes, the same for the same seed in all processes."""
    import numpy as np

    return np.random.default_rng((seed, nbytes)).integers(0, 256, nbytes, np.uint8)


def nursery(fd: int, socket_fd: int) -> None:
    """Fork a process for each message until the socket ends.

    ``itself`` copies to and from the region of the descriptor, ``owner`` allocates a region and
    sends its descriptor. Each sends its number, a word after its first copy, and copies for ever.
    """
    import faulthandler
    import os
    import signal
    import socket

    import gdrpy

    peer = socket.socket(fileno=socket_fd)
    nbytes = int(peer.recv(64))
    contents = [noise(seed, nbytes) for seed in range(2)]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    faulthandler.enable()  # none ends unseen
    peer.send(b"ready")
    while message := peer.recv(64).decode():
        if os.fork():
            continue
        _die_with_parent()
        faulthandler.dump_traceback_later(_LATE)
        peer.send(str(os.getpid()).encode())
        kind, registered = message.split()
        if kind == "itself":
            region, data, fds = gdrpy.Region.from_fd(fd, gpu=False), contents, []
        else:
            region, data = gdrpy.alloc(nbytes + 2 * GUARD, gpu=False), contents[:1]
            fds = [region.export()]
        held = [gdrpy.register(one) for one in data] if registered == "registered" else []
        for count, one in enumerate(_for_ever(data)):
            region.write(one, GUARD, VIA)
            if not count:
                faulthandler.cancel_dump_traceback_later()
                socket.send_fds(peer, [b"copies"], fds)
            if kind == "itself":
                region.readinto(one, GUARD, VIA)
        del held


def _for_ever(data: list[Bytes]) -> Iterator[Bytes]:
    while True:
        yield from data


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def _say(**found: Any) -> None:
    print(json.dumps(found), flush=True)


_ACTIONS = {"read": read, "bulk": bulk, "stream": stream, "random": random, "nursery": nursery}

if __name__ == "__main__":
    action, *arguments = sys.argv[1:]
    _die_with_parent()
    _ACTIONS[action](*(int(one) if one.isdecimal() else one for one in arguments))  # type: ignore[operator]
