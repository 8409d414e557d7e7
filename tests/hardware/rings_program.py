"""Takes records from a kernel, or calls one: see test_ring_kernels.py.

A program of its own, since a kernel that misses the end would never end either.
Usage: rings_program.py nvrtc|numba|triton|block|warp inbox|link|WORDS CAPACITY, where WORDS is for
an inbox with records of so many words of 64 bits. Prints a JSON object.
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
#: Records of 64 bytes from each of the threads, or calls.
THREADS, EACH, CALLS = 256, 2000, 20_000
#: How word i of a thread's record is made of (thread << 40 | index) * 8 + i: see inbox_kernel.cu.
ODD = 0x9E3779B97F4A7C15
TIMEOUT = 60.0

Finish = Callable[[], None]


def launched(
    file: str, name: bytes, threads: int, *arguments: tuple[type, int], words: int = 8
) -> Finish:
    """A kernel of the benchmarks that runs; what is returned waits for its end."""
    sys.path.insert(0, str(BENCHMARKS))
    import gpukernels

    image = gpukernels.compiled(BENCHMARKS / file, more=[f"-DWORDS={words}"])
    module = cuda.call("cuModuleLoadData", image)
    kernel = cuda.call("cuModuleGetFunction", module, name)
    stream = cuda.call("cuStreamCreate", cuda.driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
    kinds, values = zip(*arguments, strict=True)
    gpukernels.Kernel(kernel, threads, *kinds)(stream, *values)
    return lambda: cuda.call("cuStreamSynchronize", stream)


def push_by_nvrtc(inbox: gdrpy.Inbox) -> Finish:
    messages = gdrpy.page_locked(8 * THREADS)
    pointers = ((ctypes.c_void_p, inbox.ptr), (ctypes.c_void_p, messages.ptr))
    numbers = ((ctypes.c_ulonglong, 0), (ctypes.c_ulonglong, EACH))
    wait = launched("inbox_kernel.cu", b"push", THREADS, *pointers, *numbers)

    def finish() -> None:
        wait()
        messages.close()

    return finish


def serve_by_nvrtc(link: gdrpy.Link) -> Finish:
    return launched("link_kernel.cu", b"serve", 1, (ctypes.c_void_p, link.ptr))


def serve_by_block(link: gdrpy.Link) -> Finish:
    kernel = str(Path(__file__).with_name("link_block.cu"))
    return launched(kernel, b"serve", 64, (ctypes.c_void_p, link.ptr))


def serve_by_warp(link: gdrpy.Link) -> Finish:
    return launched("link_kernel.cu", b"serve_warp", 32, (ctypes.c_void_p, link.ptr))


def push_by_numba(inbox: gdrpy.Inbox) -> Finish:
    from numba import cuda as numba_cuda
    from numba import uint64

    from gdrpy.channel import numba as device

    @numba_cuda.jit
    def push(inbox):
        thread = uint64(numba_cuda.threadIdx.x)
        for i in range(EACH):
            index = uint64(i)
            number = device.reserve(inbox)
            if number < uint64(device.READER_CLOSED):
                device.put64(inbox, number, 0, thread)
                device.put64(inbox, number, 1, index)
                for word in range(2, 8):
                    value = (thread << uint64(40) | index) * uint64(8) + uint64(word)
                    device.put64(inbox, number, word, value * uint64(ODD))

    push[1, THREADS](np.uint64(inbox.ptr))
    return numba_cuda.synchronize


def serve_by_numba(link: gdrpy.Link) -> Finish:
    from numba import cuda as numba_cuda
    from numba import uint64

    from gdrpy.channel import numba as device

    @numba_cuda.jit
    def serve(link):
        number = device.begin_link(link)
        while device.wait_link(link, number):
            for word in range(8):
                value = device.request64(link, number, word)
                device.answer64(link, number, word, value ^ uint64(0xFFFFFFFFFFFFFFFF))
            number += uint64(1)
            device.release_link(link, number)
        device.stop_link(link)

    serve[1, 1](np.uint64(link.ptr))
    return numba_cuda.synchronize


def push_by_triton(inbox: gdrpy.Inbox) -> Finish:
    import torch
    from rings_triton import push

    block = min(32, inbox.capacity // 2)
    push[(THREADS,)](inbox.ptr, EACH=EACH, ODD=ODD - (1 << 64), BLOCK=block)
    return torch.cuda.synchronize


def serve_by_triton(link: gdrpy.Link) -> Finish:
    import torch
    from rings_triton import serve

    serve[(1,)](link.ptr, WORDS=8)
    return torch.cuda.synchronize


def take(inbox: gdrpy.Inbox, start: Callable[[gdrpy.Inbox], Finish]) -> dict[str, int]:
    """Take all records; how many words were wrong, and how many records out of order."""
    finish = start(inbox)
    data = bytearray()
    while len(data) < THREADS * EACH * 64:
        data += inbox.pop_many(timeout=TIMEOUT)
    finish()
    records = np.frombuffer(data, np.uint64).reshape(-1, 8)
    thread, index = records[:, 0], records[:, 1]
    word = (thread << np.uint64(40) | index)[:, None] * np.uint64(8) + np.arange(8, dtype=np.uint64)
    wrong = records[:, 2:] != (word * np.uint64(ODD))[:, 2:]
    order = index[np.argsort(thread, kind="stable")]
    expected = np.tile(np.arange(EACH, dtype=np.uint64), THREADS)
    return {
        "records": len(records),
        "wrong": int(wrong.sum()),
        "out of order": int((order != expected).sum()),
    }


def take_words(words: int, capacity: int) -> dict[str, int]:
    """Take records of so many words from a warp and a half; how many words were wrong.

    Zeros follow them: records have a multiple of 16 bytes.
    """
    threads, padded = 48, words + words % 2
    inbox = gdrpy.Inbox(8 * padded, capacity)
    arguments = ((ctypes.c_void_p, inbox.ptr), (ctypes.c_ulonglong, EACH))
    kernel = str(Path(__file__).with_name("inbox_sizes.cu"))
    finish = launched(kernel, b"push", threads, *arguments, words=words)
    data = bytearray()
    while len(data) < threads * EACH * 8 * padded:
        data += inbox.pop_many(timeout=TIMEOUT)
    finish()
    records = np.frombuffer(data, np.uint64).reshape(-1, padded)
    records = records[np.argsort(records[:, 0])]
    one = np.arange(threads, dtype=np.uint64)[:, None] << np.uint64(40)
    first = (one | np.arange(EACH, dtype=np.uint64)).reshape(-1, 1) * np.uint64(64)
    wrong = records[:, :words] != first + np.arange(words, dtype=np.uint64)
    return {"records": len(records), "wrong": int(wrong.sum() + records[:, words:].any())}


def call(link: gdrpy.Link, start: Callable[[gdrpy.Link], Finish]) -> dict[str, int]:
    """Call one after the other, then with as many as fit under way; how many were wrong."""
    finish = start(link)
    ones = (1 << 512) - 1
    wrong = 0
    for number in range(CALLS):
        answer = link.call(number.to_bytes(64, "little"), TIMEOUT)
        wrong += int.from_bytes(answer, "little") ^ number != ones
    answers = [link.submit(n.to_bytes(64, "little"), TIMEOUT) for n in range(CALLS)]
    for number, one in enumerate(answers):
        wrong += int.from_bytes(one.result(TIMEOUT), "little") ^ number != ones
    link.close()
    finish()
    return {"answers": 2 * CALLS, "wrong": wrong}


def main() -> None:
    kind, what, capacity = sys.argv[1:]
    push = {"nvrtc": push_by_nvrtc, "numba": push_by_numba, "triton": push_by_triton}
    serve = {
        "nvrtc": serve_by_nvrtc,
        "numba": serve_by_numba,
        "triton": serve_by_triton,
        "block": serve_by_block,
        "warp": serve_by_warp,
    }
    with cuda.context(0):
        if what == "inbox":
            found = take(gdrpy.Inbox(64, int(capacity)), push[kind])
        elif what == "link":
            found = call(gdrpy.Link(64, 64, int(capacity)), serve[kind])
        else:
            found = take_words(int(what), int(capacity))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
