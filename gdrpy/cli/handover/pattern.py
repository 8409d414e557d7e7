"""The integers that the producer leaves in GPU memory and the consumer expects there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Bytes of one of the integers.
ITEMSIZE = 4


def pattern(count: int) -> NDArray[np.uint32]:
    """``count`` little-endian integers, ``(i * 2 + 1337) ^ 0xDEADBEEF`` modulo 2**32."""
    index = np.arange(count, dtype=np.uint64)
    return ((index * 2 + 1337) ^ 0xDEADBEEF).astype("<u4")
