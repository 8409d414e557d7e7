"""Suggestions for names that were mistyped."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The word that was probably meant; None if none is near."""
    import difflib  # which only errors need

    return next(iter(difflib.get_close_matches(word, list(words), 1)), None)


def suggested(word: str, words: Iterable[str]) -> str:
    """The end of a message about an unknown word; empty if no known word is near."""
    near = nearest(word, words)
    return "" if near is None else f": did you mean {near!r}?"
