"""Sizes as users type them: 4096, 64K, 1M, 2G, in binary units; and as they read them."""

from __future__ import annotations

import argparse
import re

from gdrpy.common.sizes import approximate_size as approximate_size
from gdrpy.common.sizes import counted as counted
from gdrpy.common.sizes import format_size as format_size

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"([0-9]+)\s*([KMGT]?)(?:iB|B)?", re.IGNORECASE)
_LARGEST = 1 << 62


def parse_size(text: str) -> int:
    """The number of bytes of a size. Raises ArgumentTypeError, for argparse."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size: give whole bytes, or a whole number with K, M, G or T "
            f"(binary: 64K is 65536 bytes)"
        )
    nbytes = int(found[1]) << _UNITS[found[2].upper()]
    if not 0 < nbytes < _LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size from 1 byte to less than 4 EiB")
    return nbytes


def parse_sizes(text: str) -> list[int]:
    """Sizes separated by commas, each once, smallest first."""
    return sorted({parse_size(part) for part in text.split(",")})


def short_size(nbytes: int) -> str:
    """A size as on an axis or in a narrow column: ``64 KiB``, ``4 B``."""
    return format_size(nbytes) if nbytes and nbytes % 1024 == 0 else f"{nbytes} B"
