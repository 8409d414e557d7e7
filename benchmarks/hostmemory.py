"""The kinds of host memory that ways to copy are compared for."""

from __future__ import annotations

PAGEABLE = "pageable"
PINNED = "pinned"
NEW = "new"


def way(name: str, kind: str) -> str:
    """What a way is called, by who copies and the kind of host memory, if that is of interest."""
    return f"{name}, {kind}" if kind else name
