"""Figures, sizes and ways in words."""

from __future__ import annotations

#: Stands where nothing was measured.
ABSENT = "-"

#: The kinds of host memory that copies are compared for.
PAGEABLE, PINNED, NEW = "pageable", "pinned", "new"


def way(name: str, kind: str) -> str:
    """The name of a way: who copies, and the kind of host memory if that matters."""
    return f"{name}, {kind}" if kind else name


def figure(value: float) -> str:
    """A figure with three significant digits."""
    if value == 0:
        return "0"
    for limit, digits in ((100, 0), (10, 1), (1, 2)):
        if abs(value) >= limit:
            return f"{value:.{digits}f}"
    return f"{value:.3f}"


def size_words(nbytes: int | None) -> str:
    """A size in the largest unit that divides it."""
    if nbytes is None:
        return ABSENT
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor and nbytes % factor == 0:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes} B"


def with_unit(value: str, unit: str) -> str:
    """A figure and its unit, if it has one."""
    return f"{value} {unit}".rstrip()
