"""Figures, sizes and ways in words."""

from __future__ import annotations

from gdrpy.cli.sizes import short_size

#: Stands where nothing was measured.
ABSENT = "-"

#: The kinds of host memory that copies are compared for.
PAGEABLE, PINNED, REGISTERED, NEW = "pageable", "pinned", "registered", "new"


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
    return ABSENT if nbytes is None else short_size(nbytes)


def with_unit(value: str, unit: str) -> str:
    """A figure and its unit, if it has one."""
    return f"{value} {unit}".rstrip()
