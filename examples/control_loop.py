"""A control loop: each millisecond the CPU stores a new control word for a kernel on the GPU.

It shows how late each period begins (the jitter), and how long the store takes; ``--plot FILE``
draws both. On a GPU it needs numba-cuda. The simulated GPU has no kernels: there a thread follows
the word, and competes with the loop for the interpreter, so the figures are not those of a GPU.
"""

import argparse
import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import gdrpy
from gdrpy import cuda
from gdrpy.cli.header import gpu_header
from gdrpy.cli.measure import plotstyle

WORD, SEEN = 0, 64  # where they lie in the region
STOP = 0x7FFF_FFFF
PERIOD, PERIODS = 1_000_000, 2000  # nanoseconds, and how many
EDGES = [step * 10.0**power for power in range(-2, 4) for step in (1, 2, 5)]  # microseconds
SPIN = 100_000  # the loop wakes up that long before a period begins, and watches the clock


def start_kernel(region: gdrpy.Region) -> Callable[[], None]:
    """Launch the kernel; what is returned waits for its end."""
    os.environ["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"  # one thread is what is wanted
    from numba import cuda as numba_cuda

    @numba_cuda.jit
    def follow(word, seen):
        last = 0
        while last != STOP:
            number = numba_cuda.atomic.max(word, 0, 0)  # a load, made anew each time
            if number > last:
                numba_cuda.atomic.max(seen, 0, number)  # your controller instead
                last = number

    stream = numba_cuda.stream()
    words = [numba_cuda.as_cuda_array(region.array(1, "U32", at)) for at in (WORD, SEEN)]
    follow[1, 1, stream](*words)
    return stream.synchronize


def start_thread(region: gdrpy.Region) -> Callable[[], None]:
    """What the kernel does, on the CPU."""
    print("the simulated GPU has no kernels: a thread follows the word")
    word, seen = region.flag(WORD), region.flag(SEEN)

    def follow() -> None:
        last = 0
        while last != STOP:
            last = word.wait(last + 1)
            seen.set(last)

    thread = threading.Thread(target=follow)
    thread.start()
    return thread.join


def control(word: gdrpy.Flag) -> dict[str, list[int]]:
    """Store a word in each period: how late, and how long it took, in nanoseconds."""
    late, took = [], []
    clock = time.perf_counter_ns
    begin = clock() + PERIOD
    for number in range(2, PERIODS + 1):
        due = begin + number * PERIOD
        time.sleep(max(0, due - clock() - SPIN) / 1e9)
        while (now := clock()) < due:
            pass
        word.set(number)
        took.append(clock() - now)
        late.append(now - due)
    return {"period began late by": late, "store took": took}


def histogram(name: str, nanoseconds: list[int]) -> plotstyle.Distribution:
    """Count the times of each range between EDGES, and print a bar for each that is not empty."""
    us = np.array(nanoseconds) / 1e3
    median, p99 = np.percentile(us, [50, 99])
    counts, _ = np.histogram(us.clip(EDGES[0], EDGES[-1]), EDGES)
    print(f"\n{name}: median {median:.2f} us, p99 {p99:.2f} us, longest {us.max():.2f} us")
    for low, high, count in zip(EDGES, EDGES[1:], counts, strict=False):
        if count:
            end = f"{high:g} us" if high < EDGES[-1] else "more"
            print(f"{low:>8g} to {end:<8} {'#' * -(-50 * count // counts.max())} {count}")
    return plotstyle.Distribution(name, counts, median, p99)


def draw(path: Path, backend: str, shown: list[plotstyle.Distribution]) -> None:
    """Draw both histograms (needs matplotlib)."""
    title = f"A control loop of {PERIOD / 1e6:g} ms: its jitter, and the store of a word"
    where = plotstyle.where_measured(gpu_header("control_loop.py", 0, backend).json())
    height = plotstyle.height_of(shown)
    with plotstyle.drawing(path, title, where, height=height) as (axes,):
        plotstyle.distributions(axes, shown, EDGES, f"time, {PERIODS - 1} periods")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--plot", type=Path, metavar="FILE", help="a .png or .svg")
options = parser.parse_args()

with gdrpy.alloc(4096) as region:
    word, seen = region.flag(WORD), region.flag(SEEN)
    word.set(0)
    seen.set(0)
    finish = (start_thread if cuda.simulated() else start_kernel)(region)
    try:
        word.set(1)
        seen.wait(1, timeout=60.0)  # until the kernel runs
        gc.collect()
        times = control(word)
        seen.wait(PERIODS, timeout=20.0)
    finally:
        word.set(STOP)
        finish()  # before its memory is given back
    shown = [histogram(name, ns) for name, ns in times.items()]
    if options.plot:
        draw(options.plot, region.cpu.backend, shown)

print(f"\nthe GPU has the last of {PERIODS} words")
