"""Whose turn is next: users take turns, and so do the connections of each."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

#: The rows of new connections and of the journal, among those of users.
DOOR, JOURNAL = -1, -2

_T = TypeVar("_T")


class Turns(Generic[_T]):
    """A row for each user who waits, served one from each row in a circle."""

    def __init__(self) -> None:
        self._rows: dict[int, deque[_T]] = {}
        #: The users who have one that waits.
        self.circle: deque[int] = deque()

    def add(self, uid: int, one: _T) -> None:
        """Let one wait at the end of a user's row; a user who had none comes last in the circle."""
        row = self._rows.get(uid)
        if row is None:
            self._rows[uid] = deque((one,))
            self.circle.append(uid)
        else:
            row.append(one)

    def add_again(self, uid: int, one: _T) -> None:
        """Let one that was not done in its turn be the first of its user's row."""
        self.add(uid, one)
        self._rows[uid].rotate(1)

    def next(self) -> _T:
        """The one whose turn it is, who waits no longer. Raises IndexError where none waits."""
        uid = self.circle.popleft()
        row = self._rows[uid]
        one = row.popleft()
        if row:
            self.circle.append(uid)
        else:
            del self._rows[uid]
        return one
