"""One fresh process of the attach benchmark: its first acts, timed inside it, as JSON.

``cpu FD VALUE REPEATS`` opens a region by its CPU view alone; ``gpu FD VALUE REPEATS`` by both
views; ``pin VALUE REPEATS`` pins memory of cuMemAlloc; ``import`` imports numpy and gdrpy.
The modules of the named action are imported before the clock starts, and no others.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter_ns
from typing import Any

#: The offsets of the first store and of every later one.
FIRST = 0
FURTHER = 64

PAGE = 4096


def attach(fd: int, value: int, repeats: int, *, gpu: bool) -> dict[str, Any]:
    """Open the region, then again and again, then map more of it."""
    from gdrpy import Region

    start = perf_counter_ns()
    region = Region.from_fd(fd, gpu=gpu)
    region.cpu.store(FIRST, value)
    first = perf_counter_ns() - start

    right = gpu or not any(name.startswith("cuda.bindings") for name in sys.modules)
    further = []
    for expected in range(1, repeats + 1):
        start = perf_counter_ns()
        again = Region.from_fd(fd, gpu=gpu)
        again.cpu.store(FURTHER, expected)
        further.append(perf_counter_ns() - start)
        right = right and region.cpu.load(FURTHER) == expected
        again.close()

    mapped = []
    for expected in range(1, repeats + 1):
        start = perf_counter_ns()
        mapping = region.map(PAGE, PAGE)
        mapped.append(perf_counter_ns() - start)
        mapping.store(0, expected)
        right = right and region.cpu.load(PAGE) == expected
        mapping.close()
    return {"first": [first], "further": further, "map": mapped, "verified": right}


def pin(value: int, repeats: int) -> dict[str, Any]:
    """Pin and map memory of cuMemAlloc for the first time in a process, then again and again."""
    import gdrpy
    from gdrpy import cuda

    nbytes = 1 << 16
    with cuda.context(0), gdrpy.open() as gdr:
        ptr = int(cuda.call("cuMemAlloc", nbytes))
        times = []
        right = True
        for expected in range(value, value + 1 + repeats):
            start = perf_counter_ns()
            one = gdr.pin(ptr, nbytes)
            mapping = one.map()
            times.append(perf_counter_ns() - start)
            mapping.store(0, expected)
            seen = bytearray(4)
            cuda.call("cuMemcpyDtoH", seen, ptr, len(seen))
            right = right and int.from_bytes(seen, "little") == expected
            one.close()
        cuda.call("cuMemFree", ptr)
    return {"first": times[:1], "further": times[1:], "verified": right}


def imports() -> dict[str, Any]:
    """Import numpy, then gdrpy."""
    start = perf_counter_ns()
    import numpy

    after_numpy = perf_counter_ns()
    import gdrpy

    end = perf_counter_ns()
    del numpy, gdrpy
    return {"numpy": [after_numpy - start], "gdrpy": [end - after_numpy], "verified": None}


def main(action: str, *numbers: str) -> dict[str, Any]:
    """Do the action of the command line."""
    if action == "import":
        return imports()
    if action == "pin":
        value, repeats = map(int, numbers)
        return pin(value, repeats)
    fd, value, repeats = map(int, numbers)
    return attach(fd, value, repeats, gpu=action == "gpu")


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
