"""A table of text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of text under columns; the first column names the row."""

    title: str
    columns: list[str]
    rows: list[list[str]]
