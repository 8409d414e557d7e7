"""Timed rounds of the calls that make regions, pins and mappings, and that release them."""

from __future__ import annotations

import os
import secrets
from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

import gdrpy
from gdrpy import Mapping, Region, cuda
from gdrpy._core._mapping import Undo
from gdrpy.cli.data import expect_equal, gpu_get
from gdrpy.cli.measure.timing import clock, undisturbed

T = TypeVar("T")

NOTHING = "(nothing)"
#: The calls and what each is, in the order in which they are shown.
REGION_CALLS = {
    NOTHING: "a Python function that does nothing: the cost of timing",
    "alloc": "gdrpy.alloc(size), both views",
    "export": "region.export()",
    "import": "Region.from_fd(fd, size), both views",
    "close import": "its region.close()",
    "import CPU": "Region.from_fd(fd, size, gpu=False), as a process without CUDA",
    "close import CPU": "its region.close()",
    "map": "region.map() of the second half",
    "unmap": "mapping.close()",
    "close": "region.close() of what alloc made",
}
PIN_CALLS = {
    "pin": "gdr.pin() of memory by cuMemAlloc",
    "pin.map": "pin.map()",
    "pin.info": "pin.info",
    "pin unmap": "mapping.close()",
    "unpin": "pin.close()",
}

_TOKEN_BYTES = 16


def _nothing() -> None:
    return None


class Rounds:
    """Rounds of every call at one size; ``times`` are nanoseconds of each call, round by round.

    At most two regions of the size and one cuMemAlloc allocation exist at a time, and none after a
    round. Each round looks through every new view for bytes that another one wrote, and raises
    Mismatch. ``backend_used`` is the backend that maps, known after the first round.
    """

    def __init__(self, nbytes: int, device: int, backend: str | None) -> None:
        self.times: defaultdict[str, list[int]] = defaultdict(list)
        self._nbytes = nbytes
        self._device = device
        self._backend = backend
        self.backend_used = ""

    def _timed(self, name: str, call: Callable[..., T], *args: Any, **options: Any) -> T:
        begun = clock()
        result = call(*args, **options)
        self.times[name].append(clock() - begun)
        return result

    def region_round(self) -> None:
        """Make each of REGION_CALLS once."""
        size, backend = self._nbytes, self._backend
        with undisturbed(), Undo() as undo:
            self._timed(NOTHING, _nothing)
            region = undo.keep(
                self._timed("alloc", gdrpy.alloc, size, self._device, backend=backend)
            )
            self.backend_used = region.cpu.backend
            fd = self._timed("export", region.export)
            undo.callback(os.close, fd)
            for name, gpu in (("import", True), ("import CPU", False)):
                other = undo.keep(
                    self._timed(name, Region.from_fd, fd, size, gpu=gpu, backend=backend)
                )
                self._expect_shared(f"a region after {name}", region.cpu, other.read)
                self._timed(f"close {name}", other.close)
            half = size // 2
            mapping = undo.keep(self._timed("map", region.map, half, size - half))
            self._expect_shared("a mapping", mapping, lambda count: region.read(count, half))
            self._timed("unmap", mapping.close)
            self._timed("close", region.close)

    def pin_round(self) -> None:
        """Make each of PIN_CALLS once. Raises the error of pin() if the backend cannot pin."""
        with undisturbed(), Undo() as undo:
            with cuda.context(self._device):
                ptr = int(cuda.call("cuMemAlloc", self._nbytes))
            undo.callback(self._free, ptr)
            gdr = undo.keep(gdrpy.open(self._backend))
            pin = undo.keep(self._timed("pin", gdr.pin, ptr, self._nbytes))
            mapping = undo.keep(self._timed("pin.map", pin.map))
            self._timed("pin.info", attrgetter("info"), pin)
            self._expect_shared("a pin", mapping, lambda count: gpu_get(self._device, ptr, count))
            self._timed("pin unmap", mapping.close)
            self._timed("unpin", pin.close)

    def _free(self, ptr: int) -> None:
        with cuda.context(self._device):
            cuda.call("cuMemFree", ptr)

    def _expect_shared(self, what: str, mapping: Mapping, read: Callable[[int], Any]) -> None:
        """Raise Mismatch unless bytes stored through a mapping are read on another path."""
        token = secrets.token_bytes(min(_TOKEN_BYTES, mapping.nbytes))
        mapping.write(token)
        expect_equal(f"through {what}", token, read(len(token)))
