"""Sizes as users type and read them: 4096, 64K, 1M, 2G, in binary units."""

from __future__ import annotations

import argparse
import re

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
        raise argparse.ArgumentTypeError(f"{text!r} is not a size from 1 byte to 4194303T")
    return nbytes


def parse_sizes(text: str) -> list[int]:
    """Sizes separated by commas, each once, smallest first."""
    return sorted({parse_size(part) for part in text.split(",")})


def format_size(nbytes: int) -> str:
    """A size in the largest unit that divides it: ``64 KiB``, ``1 MiB``, ``4097 bytes``."""
    for unit in "TGMK":
        if nbytes and nbytes % (1 << _UNITS[unit]) == 0:
            return f"{nbytes >> _UNITS[unit]} {unit}iB"
    return counted(nbytes, "byte")


def short_size(nbytes: int) -> str:
    """A size as on an axis or in a narrow column: ``64 KiB``, ``4 B``."""
    return format_size(nbytes) if nbytes and nbytes % 1024 == 0 else f"{nbytes} B"


def counted(number: int, noun: str) -> str:
    """How many there are: ``1 region``, ``2 regions``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def approximate_size(nbytes: int) -> str:
    """A size with one decimal: ``139.8 GiB``."""
    for unit in "TGMK":
        if nbytes >= 1 << _UNITS[unit]:
            return f"{nbytes / (1 << _UNITS[unit]):.1f} {unit}iB"
    return format_size(nbytes)
