"""Checks of what callers pass to the broker's calls, made before anything is asked."""

from __future__ import annotations

from gdrpy._arguments import as_int
from gdrpy.broker.protocol import CPU_DEVICE, NAME_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def as_name(call: str, name: Any) -> str:
    """A region's name. Raises TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"{call}: name must be a str, and is {name!r}")
    if not 0 < len(name.encode()) <= NAME_LIMIT:
        raise ValueError(f"{call}: name must have 1 to {NAME_LIMIT} bytes, and is {name!r}")
    return name


def as_device(call: str, device: Any) -> int:
    """The number of a device as it travels. Raises TypeError, ValueError."""
    if device == "cpu":
        return CPU_DEVICE
    ordinal = as_int(call, "device", device)
    if ordinal < 0:
        raise ValueError(f"{call}: device must be a CUDA ordinal or 'cpu', and is {device!r}")
    return ordinal


def as_mode(call: str, mode: Any) -> int:
    """Permission bits. Raises TypeError, ValueError."""
    bits = as_int(call, "mode", mode)
    if bits & ~0o666:
        raise ValueError(f"{call}: mode must be permission bits like 0o640, and is {bits:#o}")
    return bits


def check_views(call: str, gpu: bool, cpu: bool) -> None:
    """Raise ValueError for no view at all."""
    if not gpu and not cpu:
        raise ValueError(f"{call}: gpu=False and cpu=False together leave no view of the memory")
