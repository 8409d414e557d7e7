"""CPU to GPU and back, a thousand times: work that is queued once answers a flag with a flag.

`gdrpy pplat` measures the same with a kernel that stays on the GPU.
"""

import statistics
import time

import gdrpy
from gdrpy import cuda

ROUNDS, QUEUED = 1000, 100

with gdrpy.alloc(4096) as region, gdrpy.page_locked(4096) as host, cuda.context(0):
    ping = region.flag()  # in GPU memory, where the GPU waits
    pong = host.flag()  # in host memory that the GPU reaches, where the CPU waits
    ping.set(0)
    pong.set(0)
    stream = cuda.call("cuStreamCreate", cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING)

    taken = []
    for first in range(1, ROUNDS + 1, QUEUED):
        numbers = range(first, first + QUEUED)
        for number in numbers:
            ping.stream_wait(stream, number)
            pong.stream_write(stream, number)
        for number in numbers:
            start = time.perf_counter_ns()
            ping.set(number)
            answer = pong.wait(number, timeout=5.0)
            taken.append(time.perf_counter_ns() - start)
            assert answer == number

    cuda.call("cuStreamSynchronize", stream)
    cuda.call("cuStreamDestroy", stream)

print(f"median {statistics.median(taken) / 1000:.1f} us there and back")
print(f"{len(taken)} rounds, every answer right")
