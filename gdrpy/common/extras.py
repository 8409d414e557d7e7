"""The remedy for a library that is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def brought_by(requirement: str) -> Iterator[None]:
    """Around imports of other projects: the error for a missing one says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"No module named {error.name!r}: pip install {requirement!r}", name=error.name
        ) from None
