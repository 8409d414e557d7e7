"""Suggestions for names that were mistyped."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The word that was probably meant, in either case; None if none is near."""
    import difflib  # which only errors need

    known = {one.casefold(): one for one in words}
    near = difflib.get_close_matches(word.casefold(), [*known], 1, cutoff=0.65)
    return known[near[0]] if near else None


def suggested(word: str, words: Iterable[str]) -> str:
    """The end of a message about an unknown word; empty if no known word is near."""
    near = nearest(word, words)
    return "" if near is None else f": did you mean {near!r}?"
