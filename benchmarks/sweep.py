"""One comparison at many points (sizes, alignments, threads), kept as statistics of each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gdrpy.cli.measure.timing import take_turns
from harness import Contender, Figure, Session, verify
from words import size_words

#: The most rounds at a point.
MOST_ROUNDS = 50

#: The suffix of a second contender of the same way, whose ratio is the noise.
AGAIN = "again"

#: The part of a key that is a number of bytes.
SIZE = "size"

Key = tuple[int, ...]


@dataclass(frozen=True)
class Point:
    """The times of the ways at one point: ns a call, one figure a round."""

    key: Key
    times: dict[str, list[float]]

    def median(self, way: str) -> float:
        """Median ns of a call."""
        return statistics.median(self.times[way])

    def best(self, ways: Iterable[str]) -> str | None:
        """The way with the least median, among those that were measured here."""
        here = [way for way in ways if way in self.times]
        return min(here, key=self.median) if here else None

    def ratio(self, one: str, others: Iterable[str]) -> float | None:
        """The time of ``one`` over the time of the best of the others.

        The median of the ratios of each round.
        """
        best = self.best(others)
        if best is None or one not in self.times:
            return None
        pairs = zip(self.times[one], self.times[best], strict=True)
        return statistics.median(mine / its for mine, its in pairs)

    def joined(self, more: Point) -> Point:
        """All rounds of this measurement and of another one of the same ways."""
        return Point(self.key, {way: self.times[way] + more.times[way] for way in self.times})


@dataclass
class Sweep:
    """All points of one comparison.

    ``by`` names the parts of their keys; ``spread`` is whether fastest and slowest are kept.
    """

    module: str
    operation: str
    by: tuple[str, ...]
    spread: bool = True
    methods: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    ratios: dict[str, list[float | None]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    unmoved: set[str] = field(default_factory=set)

    def measure(
        self,
        key: Key,
        contenders: Sequence[Contender],
        seconds: float,
        least: int = 3,
        most: int = MOST_ROUNDS,
        verify_before: bool = True,
    ) -> Point:
        """Time contenders in turns for about ``seconds``, and verify each before and after."""
        if verify_before:
            self._verify(key, contenders)
        batch = seconds * 1e9 / most / len(contenders)
        turns = take_turns([one.timed for one in contenders], seconds, batch, least, most)
        self._verify(key, contenders)
        for one in contenders:
            self.methods.setdefault(one.way, one.method)
        times = {one.way: list(turn.values) for one, turn in zip(contenders, turns, strict=True)}
        return Point(key, times)

    def _verify(self, key: Key, contenders: Sequence[Contender]) -> None:
        for one in contenders:
            right = verify(one)
            if right is None:
                self.unmoved.add(one.way)
            elif not right:
                self.wrong.append(f"{one.way} at {self.words(key)}")

    def keep(self, point: Point, ratios: Mapping[str, float | None]) -> None:
        """Add a point and its ratios."""
        self.points.append(point)
        for name, ratio in ratios.items():
            self.ratios.setdefault(name, []).append(ratio)

    def words(self, key: Key) -> str:
        """A key in words."""
        return ", ".join(
            size_words(part) if name == SIZE else f"{name} {part}"
            for part, name in zip(key, self.by, strict=True)
        )

    def figure(
        self,
        session: Session,
        name: str,
        of: Sequence[str],
        pick: Callable[..., Any],
        where: Callable[[Key], bool] | None = None,
    ) -> None:
        """Derive the figure ``name``: the largest or smallest of some ratios at such points.

        The part after the comma in their names tells several apart.
        """
        found = [
            (ratio, point.key, one)
            for one in of
            for point, ratio in zip(self.points, self.ratios.get(one, []), strict=True)
            if ratio is not None and (where is None or where(point.key))
        ]
        if found and not self.wrong:
            ratio, key, one = pick(found)
            words = self.words(key) + (f", {one.rpartition(', ')[2]}" if len(of) > 1 else "")
            session.derive_figure(
                Figure(figure_id(self.module, self.operation, name), ratio, "x", words)
            )

    def rate(self, session: Session, size: int, way: str) -> None:
        """Derive the figure ``rate_name(size, way)``: GB/s of a way at a size, if it was there."""
        for point in self.points:
            if point.key == (size,) and way in point.times and not self.wrong:
                name = figure_id(self.module, self.operation, rate_name(size, way))
                session.derive_figure(Figure(name, size / point.median(way), "GB/s"))

    def json(self) -> dict[str, Any]:
        """As plain values, a column for each part of the keys, each way and each ratio."""
        return {
            "id": f"{self.module}/{self.operation}",
            "module": self.module,
            "operation": self.operation,
            "unit": "us",
            "methods": self.methods,
            "by": {
                name: [point.key[part] for point in self.points]
                for part, name in enumerate(self.by)
            },
            "rounds": [max(map(len, point.times.values())) for point in self.points],
            "median": self._column(statistics.median),
            **({"min": self._column(min), "max": self._column(max)} if self.spread else {}),
            "ratios": {name: [_digits(one) for one in of] for name, of in self.ratios.items()},
            "wrong": self.wrong,
            "unverified": sorted(self.unmoved),
        }

    def _column(self, statistic: Callable[[list[float]], float]) -> dict[str, list[float | None]]:
        """A statistic by way, in us; None if a way took no part."""
        return {
            way: [
                _digits(statistic(point.times[way]) / 1e3) if way in point.times else None
                for point in self.points
            ]
            for way in self.methods
        }


def rate_name(size: int, way: str) -> str:
    """The name of the figure that is the rate of a way at a size."""
    return f"{size_words(size)}, {way}"


def figure_id(module: str, operation: str, name: str) -> str:
    """The id of a figure taken from a sweep."""
    return f"{module}/{operation}/{name}"


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
