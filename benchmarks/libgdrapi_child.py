"""One fresh process of the libgdrapi benchmark: pins and maps buffers, timed in C, as JSON.

``LIBRARY KIND COUNT``: what libgdrapi_native.build() left, how the buffers are allocated, how many.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gdrpy import cuda
from gdrpy.memory import vmm
from libgdrapi_native import Pinned, opened
from payload import GpuBytes, payload, same

CUDA_MALLOC, CREATE = "cudaMalloc", "cuMemCreate"
KINDS = (CUDA_MALLOC, CREATE)

_PINNED = 64 << 10
_COPIED = 64


@contextmanager
def buffers(kind: str, count: int) -> Iterator[list[int]]:
    """Buffers of 2 MiB, each a separate allocation."""
    if kind == CREATE:
        made = [vmm.create(2 << 20) for _ in range(count)]
        yield [int(one.ptr) for one in made if one.ptr]
        for one in made:
            one.close()
        return
    ptrs = [int(cuda.call("cuMemAlloc", 2 << 20)) for _ in range(count)]
    yield ptrs
    for ptr in ptrs:
        cuda.call("cuMemFree", ptr)


def is_seen(pinned: Pinned) -> bool:
    """Whether written bytes reach the GPU, and bytes of the GPU are read."""
    data, gpu = payload(_COPIED), GpuBytes(pinned.ptr)
    pinned.write(data, 0).once()
    if not same(gpu.get(_COPIED), data):
        return False
    other, back = payload(_COPIED), np.empty(_COPIED, np.uint8)
    gpu.put(other)
    pinned.read(back, 0).once()
    return same(back, other)


def main(library: str, kind: str, count: int) -> dict[str, Any]:
    """Pin and map each buffer, then release them all."""
    with cuda.context(0), buffers(kind, count) as ptrs, opened(Path(library)) as gdr:
        pinned = [gdr.pin(ptr, _PINNED) for ptr in ptrs]
        verified = all(is_seen(one) for one in pinned)
        for one in pinned:
            one.close()
    calls = [one.calls for one in pinned]
    first, *further = calls
    return {
        "open": [gdr.opening_ns],
        "first pin": [first.pin_ns],
        "first map": [first.map_ns],
        "pin": [one.pin_ns for one in further],
        "map": [one.map_ns for one in further],
        "pin and map": [one.pin_ns + one.map_ns for one in further],
        "unmap": [one.unmap_ns for one in calls],
        "unpin": [one.unpin_ns for one in calls],
        "verified": verified,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
