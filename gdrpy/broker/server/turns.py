"""The order of work: users take turns, and so do each user's connections."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

#: The rows for new connections and for the journal, beside those of users.
DOOR, JOURNAL = -1, -2

_T = TypeVar("_T")


class Turns(Generic[_T]):
    """A row of waiting items for each user; the rows are served in a circle, one item each."""

    def __init__(self) -> None:
        self._rows: dict[int, deque[_T]] = {}
        #: The users with waiting items.
        self.circle: deque[int] = deque()

    def add(self, uid: int, one: _T) -> None:
        """Add an item at the end of a user's row; a new row comes last in the circle."""
        row = self._rows.get(uid)
        if row is None:
            self._rows[uid] = deque((one,))
            self.circle.append(uid)
        else:
            row.append(one)

    def add_again(self, uid: int, one: _T) -> None:
        """Add an item that its turn did not finish at the front of its user's row."""
        self.add(uid, one)
        self._rows[uid].rotate(1)

    def next(self) -> _T:
        """Remove and return the next item. Raises IndexError if none waits."""
        uid = self.circle.popleft()
        row = self._rows[uid]
        one = row.popleft()
        if row:
            self.circle.append(uid)
        else:
            del self._rows[uid]
        return one
