"""Checks of the arguments of the broker's calls, made before any request."""

from __future__ import annotations

import math
import re
from typing import Any

from gdrpy import cuda
from gdrpy.broker.protocol import (
    CPU_DEVICE,
    DEVICE_LIMIT,
    GRACE_LIMIT,
    NAME_LIMIT,
    REGION_LIMIT,
)
from gdrpy.common import arguments as _arguments
from gdrpy.common.arguments import as_int


def as_name(call: str, value: Any, what: str = "name", least: int = 1) -> str:
    """A region's name, of ``least`` bytes or more. Raises TypeError, ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{call}: {what} must be a str, not {value!r:.80}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:  # half a surrogate pair
        raise ValueError(f"{call}: {what} must be Unicode text, not {value!r}") from None
    if not least <= size <= NAME_LIMIT:
        raise ValueError(
            f"{call}: {what} must be {least} to {NAME_LIMIT} bytes long, not {value!r}"
        )
    return value


def as_prefix(call: str, prefix: Any) -> str:
    """A prefix of region names. Raises TypeError, ValueError."""
    return as_name(call, prefix, "prefix", 0)


def as_device(call: str, device: Any) -> int | str:
    """A device as a request names it. Raises TypeError, ValueError, NotFound.

    An ordinal is the broker's. torch's names are this process's, and a request has the UUID.
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
    """The size of a region in bytes. Raises TypeError, ValueError."""
    nbytes = _arguments.as_size(call, value)
    if nbytes > REGION_LIMIT:
        raise ValueError(f"{call}: nbytes must be at most 2**61, not {nbytes}")
    return nbytes


def as_mode(call: str, mode: Any) -> int:
    """Permission bits. Raises TypeError, ValueError."""
    bits = as_int(call, "mode", mode)
    if bits & ~0o666:
        octal = re.fullmatch("[0246]{3}", str(bits))
        given = f"{bits}: did you mean 0o{bits}?" if octal else f"{bits:#o}"
        raise ValueError(
            f"{call}: mode must be permission bits of at most 0o666, like 0o640, not {given}"
        )
    return bits


def as_seconds(call: str, name: str, value: Any) -> float:
    """A number of seconds from 0 up. Raises TypeError, ValueError."""
    try:
        seconds = math.nan if isinstance(value, str) else float(value)
    except TypeError:
        seconds = math.nan
    except OverflowError:  # an int larger than any float
        seconds = math.inf if value > 0 else math.nan
    if seconds >= 0:
        return seconds
    kind = ValueError if isinstance(value, int | float) else TypeError
    raise kind(f"{call}: {name} must be a number of seconds, not {value!r}")


def as_grace(call: str, value: Any) -> float | None:
    """The grace of a bound region in seconds, None for none. Raises TypeError, ValueError."""
    if value is None:
        return None
    if isinstance(value, int | float) and not 0 <= value <= GRACE_LIMIT:
        raise ValueError(f"{call}: grace must be 0 to {GRACE_LIMIT} seconds, not {value!r}")
    return as_seconds(call, "grace", value)
