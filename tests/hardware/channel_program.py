"""Pushes a million records to a kernel that verifies them: see test_channel_kernels.py.

A program of its own, since a kernel that misses the end would never end either.
Usage: channel_program.py nvrtc|numba|triton one|many. Prints a JSON object.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import gdrpy
from gdrpy import cuda

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RECORDS, WORDS, CAPACITY = 1_000_000, 8, 4096
#: The 64-bit words of all records, in order, are 0 * ODD, 1 * ODD, ... modulo 2**64.
ODD = 0x9E3779B97F4A7C15
THREADS = 256

Finish = Callable[[], dict[str, int]]


def by_nvrtc(channel: gdrpy.Channel) -> Finish:
    sys.path.insert(0, str(BENCHMARKS))
    import gpukernels

    image = gpukernels.compiled(BENCHMARKS / "channel_kernel.cu")
    module = cuda.call("cuModuleLoadData", image)
    kernel = cuda.call("cuModuleGetFunction", module, b"verify")
    stream = cuda.call("cuStreamCreate", cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
    verdict = gdrpy.alloc(32)
    verdict.write(bytes(32))
    pointers = (ctypes.c_void_p, ctypes.c_void_p)
    gpukernels.Kernel(kernel, THREADS, *pointers)(stream, channel.ptr, verdict.ptr)

    def finish() -> dict[str, int]:
        cuda.call("cuStreamSynchronize", stream)
        names = ("records", "mismatches", "checksum", "batches")
        return dict(zip(names, np.frombuffer(verdict.read(), np.uint64).tolist(), strict=True))

    return finish


def by_numba(channel: gdrpy.Channel) -> Finish:
    from numba import cuda as numba_cuda
    from numba import uint64

    from gdrpy.channel import numba as device

    @numba_cuda.jit
    def verify(channel, verdict):
        thread, threads = numba_cuda.threadIdx.x, numba_cuda.blockDim.x
        head = device.begin(channel)
        mismatches = uint64(0)
        ready = device.wait_block(channel, head)
        while ready != uint64(0):
            for i in range(uint64(thread), ready * uint64(WORDS), uint64(threads)):
                index = head * uint64(WORDS) + uint64(i)
                found = device.load64(channel, index // uint64(WORDS), index % uint64(WORDS))
                if found != index * uint64(ODD):
                    mismatches += uint64(1)
            head += ready
            device.release_block(channel, head)
            ready = device.wait_block(channel, head)
        numba_cuda.atomic.add(verdict, 1, mismatches)
        if thread == 0:
            verdict[0] = head

    verdict = numba_cuda.to_device(np.zeros(2, np.uint64))
    verify[1, THREADS](np.uint64(channel.ptr), verdict)

    def finish() -> dict[str, int]:
        records, mismatches = verdict.copy_to_host().tolist()
        return {"records": records, "mismatches": mismatches}

    return finish


def by_triton(channel: gdrpy.Channel) -> Finish:
    import torch
    from channel_triton import verify

    verdict = torch.zeros(2, dtype=torch.int64, device="cuda")
    signed = ODD - (1 << 64)
    verify[(1,)](channel.ptr, verdict, WORDS=WORDS, ODD=signed, BLOCK=THREADS)

    def finish() -> dict[str, int]:
        records, mismatches = verdict.tolist()
        return {"records": records, "mismatches": mismatches}

    return finish


def push(channel: gdrpy.Channel, how: str) -> int:
    """Push all records; the sum of their words modulo 2**64."""
    words = np.arange(RECORDS * WORDS, dtype=np.uint64) * np.uint64(ODD)
    if how == "many":
        channel.push_many(words, timeout=60)
    else:
        records = memoryview(words.tobytes())
        for start in range(0, len(records), 8 * WORDS):
            channel.push(records[start : start + 8 * WORDS], timeout=60)
    return int(words.sum(dtype=np.uint64))


def main() -> None:
    kind, how = sys.argv[1:]
    start = {"nvrtc": by_nvrtc, "numba": by_numba, "triton": by_triton}[kind]
    channel = gdrpy.Channel(8 * WORDS, CAPACITY)
    with cuda.context(0):
        finish = start(channel)
        with channel:
            checksum = push(channel, how)
        channel.drain(timeout=60)
        verdict = finish()
    print(json.dumps({"pushed": channel.pushed, "checksum pushed": checksum, **verdict}))


if __name__ == "__main__":
    main()
