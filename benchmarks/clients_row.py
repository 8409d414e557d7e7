"""The tests of a client: what was tried, expected and found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sweep import Sweep

PASS, FAIL, WAIVED, NOT_RUN = "pass", "fail", "waived", "not run"


@dataclass(frozen=True)
class Row:
    """One test. ``why`` is the reason to expect a failure; ``said`` shows its output."""

    client: str
    variant: str
    test: str
    found: str
    expected: str = PASS
    why: str | None = None
    said: Sequence[str] = ()
    seconds: float | None = None

    def json(self) -> dict[str, Any]:
        """As plain values."""
        seconds = None if self.seconds is None else round(self.seconds, 2)
        return asdict(self) | {"said": list(self.said), "seconds": seconds}


def passed(right: bool) -> str:
    """PASS or FAIL."""
    return PASS if right else FAIL


@dataclass
class Client:
    """A client, its version, and its tests."""

    name: str
    version: str | None = None
    rows: list[Row] = field(default_factory=list)
    sweeps: list[Sweep] = field(default_factory=list)
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    logs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, variant: str, test: str, found: str, **more: Any) -> Row:
        """Keep a row."""
        row = Row(self.name, variant, test, found, **more)
        self.rows.append(row)
        return row


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each row, the output after a surprise, and the counts at the end."""
    width = max((len(_words(row)) for row in rows), default=0)
    surprises = 0
    for row in rows:
        text = f"{row['found']:<8}{_words(row):<{width}}"
        if row["found"] != row["expected"]:
            surprises += 1
            yield f"{text}  SURPRISE, expected: {row['expected']}"
            yield from (f"    {one}" for one in row["said"])
        else:
            yield f"{text}  {'as expected: ' + row['why'] if row['why'] else ''}".rstrip()
    yield f"{len(rows)} tests, {surprises} surprises"


def _words(row: dict[str, Any]) -> str:
    return f"{row['client']}, {row['variant']}: {row['test']}"
