"""What must be so, beside what is measured: a line for each in the output and in the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """Something that must be so, and what was found."""

    what: str
    passed: bool
    found: str


def lines(checks: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each check."""
    for one in checks:
        yield f"{'pass' if one['passed'] else 'FAIL'}  {one['what']}: {one['found']}"
