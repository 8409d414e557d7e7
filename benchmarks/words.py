"""Figures and sizes as people say them."""

from __future__ import annotations

#: What stands where nothing was measured.
ABSENT = "-"


def figure(value: float) -> str:
    """A figure with three digits that count."""
    if value == 0:
        return "0"
    for limit, digits in ((100, 0), (10, 1), (1, 2)):
        if abs(value) >= limit:
            return f"{value:.{digits}f}"
    return f"{value:.3f}"


def size_words(nbytes: int | None) -> str:
    """A size as people say it."""
    if nbytes is None:
        return ABSENT
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor and nbytes % factor == 0:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes} B"


def with_unit(value: str, unit: str) -> str:
    """A figure and its unit, if it has one."""
    return f"{value} {unit}".rstrip()
