"""Checks of what callers pass to the broker's calls, made before anything is asked."""

from __future__ import annotations

from typing import Any

from gdrpy import cuda
from gdrpy.broker.protocol import CPU_DEVICE, DEVICE_LIMIT, NAME_LIMIT, REGION_LIMIT
from gdrpy.common import arguments as _arguments
from gdrpy.common.arguments import as_int


def as_name(call: str, name: Any) -> str:
    """A region's name. Raises TypeError, ValueError."""
    return _text(call, "name", name, 1)


def as_prefix(call: str, prefix: Any) -> str:
    """What regions' names begin with. Raises TypeError, ValueError."""
    return _text(call, "prefix", prefix, 0)


def _text(call: str, what: str, value: Any, least: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{call}: {what} must be a str, not {value!r}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:  # half a surrogate pair
        raise ValueError(f"{call}: {what} must be Unicode text, not {value!r}") from None
    if not least <= size <= NAME_LIMIT:
        raise ValueError(
            f"{call}: {what} must be {least} to {NAME_LIMIT} bytes long, not {value!r}"
        )
    return value


def as_device(call: str, device: Any) -> int | str:
    """A device as it travels. Raises TypeError, ValueError, NotFound.

    An ordinal is the broker's; torch's names are this process's, and travel as a UUID.
    """
    if device == "cpu":
        return CPU_DEVICE
    named = _arguments.as_device(call, device, or_cpu=True)
    if named == "cpu":
        return CPU_DEVICE
    if isinstance(named, str) and named.startswith("cuda"):
        return cuda.uuid(cuda.ordinal(call, named))
    if isinstance(named, int) and not 0 <= named < DEVICE_LIMIT:
        raise ValueError(
            f"{call}: device must be a CUDA ordinal from 0 to {DEVICE_LIMIT - 1}, not {named}"
        )
    return named


def as_nbytes(call: str, value: Any) -> int:
    """A number of bytes that a region may have. Raises TypeError, ValueError."""
    nbytes = _arguments.as_size(call, value)
    if nbytes > REGION_LIMIT:
        raise ValueError(f"{call}: nbytes must be at most 2**61, not {nbytes}")
    return nbytes


def as_mode(call: str, mode: Any) -> int:
    """Permission bits. Raises TypeError, ValueError."""
    bits = as_int(call, "mode", mode)
    if bits & ~0o666:
        raise ValueError(f"{call}: mode must be permission bits like 0o640, not {bits:#o}")
    return bits
