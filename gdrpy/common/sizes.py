"""Sizes as users read them, in binary units."""

from __future__ import annotations

_UNITS = {"T": 1 << 40, "G": 1 << 30, "M": 1 << 20, "K": 1 << 10}
#: From so many of a unit on a size is not told in it alone.
_MANY = 10_000


def format_size(nbytes: int) -> str:
    """A size in the largest unit that divides it: ``64 KiB``, ``1 MiB``, ``4097 bytes``."""
    for name, unit in _UNITS.items():
        if nbytes and nbytes % unit == 0:
            return f"{nbytes // unit} {name}iB"
    return counted(nbytes, "byte")


def approximate_size(nbytes: int) -> str:
    """A size with one decimal: ``139.8 GiB``."""
    for name, unit in _UNITS.items():
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}iB"
    return format_size(nbytes)


def told_size(nbytes: int) -> str:
    """An exact size for messages: ``2 GiB``, ``140.4 GiB (150754820096 bytes)``."""
    exact = format_size(nbytes)
    number, _, unit = exact.partition(" ")
    if int(number) < (_MANY if unit.endswith("iB") else 1024):
        return exact
    return f"{approximate_size(nbytes)} ({nbytes} bytes)"


def counted(number: int, noun: str) -> str:
    """How many there are: ``1 region``, ``2 regions``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
