"""How two runs of bytes differ, and the exception that tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Bytes shown of each side, from the first differing one on.
_SHOWN = 16

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Difference:
    """``offset`` is that of the first differing byte; the excerpts begin there, in hex."""

    offset: int
    nbytes: int
    differing: int
    expected: str
    got: str

    def __str__(self) -> str:
        return (
            f"first differing byte at offset {self.offset}: expected {self.expected}, "
            f"got {self.got}; {self.differing} of {self.nbytes} bytes differ"
        )


class Mismatch(Exception):
    """A check found something else than it must."""

    def __init__(self, message: str, difference: Difference | None = None) -> None:
        super().__init__(message)
        self.difference = difference


def as_bytes(data: Any) -> Bytes:
    """The bytes of any contiguous buffer, without a copy."""
    return np.frombuffer(data, dtype=np.uint8)


def difference(expected: Any, got: Any, base: int = 0) -> Difference | None:
    """How two buffers differ, None if not at all; ``base`` is the offset of their first byte."""
    wanted, seen = as_bytes(expected), as_bytes(got)
    if wanted.size != seen.size:
        raise Mismatch(f"{wanted.size} bytes were to be read, and {seen.size} came")
    if np.array_equal(wanted, seen):
        return None
    where = np.flatnonzero(wanted != seen)
    first = int(where[0])
    return Difference(
        offset=base + first,
        nbytes=wanted.size,
        differing=int(where.size),
        expected=wanted[first : first + _SHOWN].tobytes().hex(" "),
        got=seen[first : first + _SHOWN].tobytes().hex(" "),
    )


def expect_equal(what: str, expected: Any, got: Any, base: int = 0) -> None:
    """Raise Mismatch unless the two buffers are the same."""
    found = difference(expected, got, base)
    if found:
        raise Mismatch(f"{what}: {found}", found)


def expect(condition: bool, message: str) -> None:
    """Raise Mismatch with the message unless the condition holds."""
    if not condition:
        raise Mismatch(message)
