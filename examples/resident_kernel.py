"""A kernel stays on the GPU, and works when the CPU sets a flag: no launch for each piece of work.

On a GPU it needs numba-cuda. The simulated GPU has no kernels: there a thread does what it would.
"""

import os
import threading
from collections.abc import Callable

import numpy as np

import gdrpy
from gdrpy import cuda

BELL, DONE, ANSWER, WORK = 0, 64, 128, 4096  # where they lie in the region
COUNT = 1000
STOP = 0x7FFF_FFFF  # flags compare by their difference, so half of all numbers count


def start_kernel(region: gdrpy.Region) -> Callable[[], None]:
    """Launch the kernel; what is returned waits for its end."""
    os.environ["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"  # one thread is what is wanted
    from numba import cuda as numba_cuda

    @numba_cuda.jit
    def serve(bell, done, work, answer):
        served = 0
        while True:
            number = numba_cuda.atomic.max(bell, 0, 0)  # a load, made anew each time
            if number == STOP:
                return
            if number > served:
                numba_cuda.threadfence_system()  # the work is read after the bell
                total = 0.0
                for i in range(work.size):
                    total += work[i] * work[i]
                answer[0] = total
                numba_cuda.threadfence_system()  # the answer is seen before `done` is
                numba_cuda.atomic.max(done, 0, number)
                served = number

    stream = numba_cuda.stream()
    places = ((1, "U32", BELL), (1, "U32", DONE), (COUNT, "F32", WORK), (1, "F64", ANSWER))
    arrays = [numba_cuda.as_cuda_array(region.array(*place)) for place in places]
    serve[1, 1, stream](*arrays)
    return stream.synchronize


def start_thread(region: gdrpy.Region) -> Callable[[], None]:
    """What the kernel does, on the CPU."""
    print("the simulated GPU has no kernels: a thread works")
    bell, done = region.flag(BELL), region.flag(DONE)

    def serve() -> None:
        served = 0
        while (number := bell.wait(served + 1)) != STOP:
            work = np.frombuffer(region.read(4 * COUNT, WORK), np.float32)
            region.write(np.float64([(work * work).sum()]), ANSWER)
            done.set(number)
            served = number

    thread = threading.Thread(target=serve)
    thread.start()
    return thread.join


with gdrpy.alloc(1 << 20) as region:
    bell, done = region.flag(BELL), region.flag(DONE)
    bell.set(0)
    done.set(0)
    start = start_thread if cuda.simulated() else start_kernel
    finish = start(region)
    try:
        for number in range(1, 101):
            region.write(np.full(COUNT, number, np.float32), WORK)
            bell.set(number)  # fences: the kernel that sees it sees the work
            done.wait(number, timeout=20.0)
            (answer,) = np.frombuffer(region.read(8, ANSWER))
            assert answer == COUNT * number * number
    finally:
        bell.set(STOP)
        finish()  # before its memory is given back

print(f"100 answers, the last {answer:.0f}, by what was started once")
