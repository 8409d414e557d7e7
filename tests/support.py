"""What several tests need and no fixture gives."""

import ctypes
import functools
import gc
import os
import re
from collections.abc import Callable
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import pytest

from gdrpy import cuda


class Watched:
    """The functions of a module; calls whose name ``pattern`` matches are made by ``call``.

    ``call(name, function, *args)`` returns what the function would.
    """

    def __init__(self, functions: Any, pattern: str, call: Callable[..., Any]) -> None:
        self._functions, self._pattern, self._call = functions, pattern, call

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._functions, name)
        if not re.fullmatch(self._pattern, name):
            return found
        return functools.partial(self._call, name, found)


def open_descriptors() -> dict[str, str]:
    """What this process has open, by number, without what garbage has and without the folder that
    the answer is read from.
    """
    gc.collect()
    return listed_descriptors()


def listed_descriptors() -> dict[str, str]:
    """The same with what garbage has, if there is any."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except FileNotFoundError:
            continue
    return found


def settled_descriptors() -> int:
    """How many are open when multiprocessing's thread that sends them has ended: it closes its own
    only after they have arrived.
    """
    resource_sharer.stop()
    return len(open_descriptors())


def gpu_mappings() -> int:
    """How many mappings of GPU memory, real or simulated, this process has."""
    maps = Path("/proc/self/maps").read_bytes()
    names = b"/dev/nvidia /memfd:gdrpy-sim /memfd:gdrpy-host /dev/gpustandin gdrdrv".split()
    return sum(map(maps.count, names))


def manager_violations() -> int:
    """Broken rules that the simulated resource manager counted, 0 where it is not preloaded."""
    count = getattr(ctypes.CDLL(None), "fakerm_count", None)
    return count(b"violations") if count else 0


class FreeBytes(int):
    """Free GPU memory. On a real GPU it equals all that one slab of the driver's own may change."""

    _SLAB = 2 << 20

    def __eq__(self, other: object) -> bool:
        slack = 0 if cuda.simulated() else self._SLAB
        return isinstance(other, int) and abs(int(self) - int(other)) <= slack

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


def free_nbytes() -> FreeBytes:
    """The free memory of GPU 0, in bytes."""
    with cuda.context(0):
        return FreeBytes(cuda.call("cuMemGetInfo")[0])


def hide_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the node of the kernel module seem to be of NVIDIA's, until the test ends."""
    from gdrpy.memory import node

    open_node = node.Node.__init__

    def open_plain(self: node.Node) -> None:
        open_node(self)
        self.struct.features = 0

    monkeypatch.setattr(node.Node, "__init__", open_plain)
    monkeypatch.setattr(node, "own_node", node._OwnNode())


def reopened_for_reading(fd: int) -> int:
    """A new descriptor of the same memory file, through which nobody can write."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def free_address(nbytes: int) -> int:
    """A GPU address that CUDA gave and has back: it gives it again to who asks for it."""
    pointer = cuda.call("cuMemAddressReserve", nbytes, 0, 0, 0)
    cuda.call("cuMemAddressFree", pointer, nbytes)
    return int(pointer)
