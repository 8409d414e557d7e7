"""What is written and looked at: seeded noise, and the windows of a region too large to see whole.

A second process makes the same from the same numbers, so nothing but seeds is handed over.
"""

from __future__ import annotations

import numpy as np

from gdrpy.cli.checks.difference import Bytes

#: Regions up to this size are checked whole, in bytes.
WHOLE_UP_TO = 16 << 20
_WINDOW = 1 << 20
_WINDOWS = 16


def windows(nbytes: int) -> list[tuple[int, int]]:
    """(offset, size) of the ranges to check: all of it, or some evenly spread, both ends too."""
    if nbytes <= WHOLE_UP_TO:
        return [(0, nbytes)]
    last = nbytes - _WINDOW
    return [(last * i // (_WINDOWS - 1), _WINDOW) for i in range(_WINDOWS)]


def repeated(word: int, offset: int, nbytes: int) -> Bytes:
    """``nbytes`` bytes, from ``offset`` on, of a 32-bit word written again and again."""
    words = np.full(nbytes // 4 + 2, word, "<u4").view(np.uint8)
    return words[offset % 4 :][:nbytes]


class Noise:
    """Random bytes, the same ones for the same seeds."""

    def __init__(self, *seeds: int) -> None:
        self._generator = np.random.default_rng(seeds)

    def bytes(self, nbytes: int) -> Bytes:
        """The next ``nbytes`` bytes."""
        return self._generator.integers(0, 256, nbytes, dtype=np.uint8)
