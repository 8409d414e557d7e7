"""Counters, of which there is one of a name."""

from collections.abc import Sequence

_names: set[str] = set()


class Counter:
    def __init__(self, name: str, documentation: str, labelnames: Sequence[str] = ()) -> None:
        if name in _names:
            raise ValueError(f"Duplicated timeseries: {name}")
        _names.add(name)
        self.labelnames = tuple(labelnames)
        self.counts: dict[tuple[str, ...], float] = {}

    def labels(self, *values: str) -> "_Child":
        if len(values) != len(self.labelnames):
            raise ValueError("Incorrect label count")
        return _Child(self, values)


class _Child:
    def __init__(self, counter: Counter, values: tuple[str, ...]) -> None:
        self._counter, self._values = counter, values

    def inc(self, amount: float = 1) -> None:
        counts = self._counter.counts
        counts[self._values] = counts.get(self._values, 0) + amount
