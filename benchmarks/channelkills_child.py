"""The processes that channelkills.py kills, forked by one that has imported everything.

Usage: channelkills_child.py SOCKET. Each line of stdin names a role, for which a child is forked;
its process number is printed.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gdrpy
import gpukernels
from gdrpy import cuda
from gdrpy.channel import KernelEnd

NAME, FOUND = "killed", "found"
NBYTES, CAPACITY = 64, 1024
WORDS = NBYTES // 8
#: The 64-bit words of all records, in order, are 0 * ODD, 1 * ODD, ... modulo 2**64.
ODD = np.uint64(0x9E3779B97F4A7C15)
#: What the kernel stores: see channelkills_kernel.cu.
TAKEN, WRONG, ENDS = 0, 8, 16
PATIENCE = 60.0
#: Records that the kernel's stand-in takes at once, at most.
BATCH = 64
_SOURCE = Path(__file__).with_name("channelkills_kernel.cu")


def records(first: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Records ``first`` and following."""
    return np.arange(first * WORDS, (first + count) * WORDS, dtype=np.uint64) * ODD


def produce(socket: str) -> None:
    """Push records from the first that was not pushed, until killed."""
    choice = random.Random(os.getpid())
    with gdrpy.connect(socket) as broker:
        channel = gdrpy.Channel(NBYTES, CAPACITY, broker=broker, name=NAME)
        while True:
            try:
                channel.push_many(records(channel.pushed, choice.randrange(1, 300)))
            except gdrpy.Closed:  # the kernel's process is gone: another one takes over
                channel.wait_for_kernel(PATIENCE)


def compiled() -> bytes:
    """The kernel; empty on the simulated GPU, which has none."""
    return b"" if cuda.simulated() else gpukernels.compiled(_SOURCE)


def launch(end: KernelEnd, found: gdrpy.Region, image: bytes) -> Callable[[], bool]:
    """Launch the kernel, or a thread in its place; what is returned tells whether it has ended."""
    if not image:
        thread = threading.Thread(target=_stand_in, args=(end.reader(), found.cpu), daemon=True)
        thread.start()
        return lambda: not thread.is_alive()
    module = cuda.call("cuModuleLoadData", image)
    function = cuda.call("cuModuleGetFunction", module, b"verify")
    stream = cuda.call("cuStreamCreate", cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
    pointers = (ctypes.c_void_p, ctypes.c_void_p)
    cuda.check(
        "cuLaunchKernel",
        gpukernels.Kernel(function, 1, *pointers)(stream, end.ptr, found.ptr)[0],  # type: ignore[index]
    )
    query = cuda.driver().cuStreamQuery
    done = cuda.driver().CUresult.CUDA_SUCCESS

    def has_ended() -> bool:
        if query(stream)[0] != done:
            return False
        cuda.call("cuStreamDestroy", stream)
        cuda.call("cuModuleUnload", module)
        return True

    return has_ended


def _stand_in(reader: gdrpy.channel.ChannelReader, found: gdrpy.Mapping) -> None:
    """Do the kernel's work on the CPU."""
    while True:
        first = reader.popped
        data = reader.pop_many(BATCH)
        if not data:
            break
        words = np.frombuffer(data, np.uint64).reshape(-1, WORDS)
        wrong = int((words != records(first, len(words)).reshape(-1, WORDS)).any(axis=1).sum())
        found.store(TAKEN, found.load(TAKEN, 8) + len(words), 8)
        found.store(WRONG, found.load(WRONG, 8) + wrong, 8)
    found.store(ENDS, found.load(ENDS, 8) + 1, 8)


def consume(socket: str) -> None:
    """Run the kernel again and again, until killed."""
    with gdrpy.connect(socket) as broker, cuda.context(0):
        end = KernelEnd(broker, NAME, wait=PATIENCE)
        found, image = broker.get(FOUND), compiled()
        while end.wait(PATIENCE, new=True):
            has_ended = launch(end, found, image)
            while not has_ended():
                time.sleep(0.0005)


def main(socket: str) -> None:
    """Fork what is asked for."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    roles = {"produce": produce, "consume": consume}
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            roles[line.strip()](socket)
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
