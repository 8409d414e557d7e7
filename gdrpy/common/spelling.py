"""Suggestions for names that were mistyped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn, TypeVar

from gdrpy.errors import NotFound

T = TypeVar("T")


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The word that was probably meant, in either case; None if none is near."""
    import difflib  # which only errors need

    known = {one.casefold(): one for one in words}
    near = difflib.get_close_matches(word.casefold(), [*known], 1)
    return known[near[0]] if near else None


def suggested(word: str, words: Iterable[str]) -> str:
    """The end of a message about an unknown word; empty if no known word is near."""
    near = nearest(word, words)
    return "" if near is None else f": did you mean {near!r}?"


class Tensors(dict[str, T]):
    """Tensors by name, which ``call`` gave: its error for a missing name suggests the nearest."""

    def __init__(self, tensors: Mapping[str, T], call: str) -> None:
        super().__init__(tensors)
        self._call = call

    def __missing__(self, name: object) -> NoReturn:
        near = suggested(str(name), self)
        raise NotFound(f"{self._call}: there is no tensor {name!r}{near}")
