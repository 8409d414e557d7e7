"""The steps that producer and consumer print, and the integers that they hand over."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gdrpy.cli.output import Output

#: Bytes of one of the integers.
ITEMSIZE = 4


def pattern(count: int) -> NDArray[np.uint32]:
    """``count`` little-endian integers, ``(i * 2 + 1337) ^ 0xDEADBEEF`` modulo 2**32."""
    index = np.arange(count, dtype=np.uint64)
    return ((index * 2 + 1337) ^ 0xDEADBEEF).astype("<u4")


class Steps:
    """Prints each step when it is done, and keeps it for JSON."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.done: list[dict[str, str]] = []

    def add(self, what: str, how: str) -> None:
        """Add a step that was just done, and the calls or the idea behind it."""
        self.done.append({"step": what, "how": how})
        self._output.line(f"{len(self.done)}. {what}")
        self._output.line(f"     {how}", style="dim")
