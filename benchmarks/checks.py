"""What must be so, beside what is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """Something that must be so, and what was found."""

    what: str
    passed: bool
    found: str
