"""Base classes of objects that must be closed."""

from __future__ import annotations

import sys
import warnings
from types import TracebackType
from typing import Any, Self

from gdrpy._core import _mapping
from gdrpy._core._mapping import Undo, alone
from gdrpy.errors import StillInUse

#: The remedy for pickling a region, or an object made from one.
HOW_TO_SEND = (
    "send it by multiprocessing, through a Queue, a Pipe or a Process's arguments; or send a file "
    "descriptor, from Region.export(), and open it there by Region.from_fd(); or use a region of "
    "a broker, which pickles"
)


class Closing:
    """Closes at the end of a ``with`` block; a failure never hides the block's own exception.

    Where close() raises BufferError because views are alive, the block's end retires the object
    instead: it is closed, and what the views use is released with the last of them. The caller is
    told once, by a StillInUse warning or by a note on the block's exception.
    """

    __slots__ = ()

    close: Any
    #: Retires an object that close() refuses to close; whether the caller must be told.
    _retire: Any

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            told = self._close_or_retire()
            if told is not None and error is None:
                warnings.warn(told, StillInUse, stacklevel=2)
            elif told is not None and error is not None:
                error.add_note(told)
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"closing: {type(failure).__name__}: {failure}")

    def _close_or_retire(self) -> str | None:
        """Close it, or retire it; what to tell the caller of views that are still in use."""
        try:
            self.close()
        except BufferError as busy:
            shown = repr(self)
            if self._retire():
                return (
                    f"{shown} was in use when its with block ended: it is closed, and what is in "
                    f"use is released with its last user. {busy}"
                )
        return None


class Resource(Closing, _mapping.Resource):
    """Closes once, is a context manager, and belongs to the process that made it.

    ``_lock`` is held during close(), and by subclasses while they make or use parts that close()
    would release.
    """

    #: The remedies for use after close(), which may be empty, in a forked child, and for pickling.
    _anew = ""
    _again = "open it again from its file descriptor, or start processes by spawn or forkserver"
    _elsewhere = HOW_TO_SEND
    _closed = True  # until it is made
    #: Kept here because at the interpreter's exit objects may outlive this module's names.
    _finalizing = staticmethod(sys.is_finalizing)

    def _release(self) -> None:
        """Release what this object holds; the object stays open if this raises.

        Raises BufferError only if :meth:`_release_with_users` is overridden too.
        """

    def _retire(self) -> bool:
        return alone(self._lock, self._retire_once)

    def _retire_once(self) -> bool:
        if self._closed:
            return False
        self._closed = True
        return self._release_with_users()

    def _release_with_users(self) -> bool:
        """Release what is not in use at once, and the rest when its last user is gone.

        Returns whether anything is in use that the caller was not told of.
        """
        self._release()
        return False

    def __enter__(self) -> Self:
        self._check(f"with {type(self).__name__}")
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: {self._elsewhere}")


class Owner(Resource):
    """A resource that is released, at the latest, when it is no longer referenced.

    ``undo`` holds the steps that release it, latest first; a class that overrides
    :meth:`_give_back` needs none. Users that :meth:`hold` it delay the release: the garbage
    collector may finalize an owner before the objects made from it.
    """

    _users: set[object] | frozenset[object] = frozenset()  # a set after the first
    _undo: Undo | None = None

    def hold(self, user: object) -> None:
        """Keep it for a user, an object equal to no other user. Raises Closed, Forked."""
        alone(self._lock, self._hold_open, user)

    def _hold_open(self, user: object) -> None:
        self._check("using it")
        if not isinstance(self._users, set):
            self._users = set()
        self._users.add(user)

    def let_go(self, user: object) -> None:
        """End a user's hold; the end of the last hold on a closed owner releases it."""
        if isinstance(self._users, set):
            self._users.discard(user)
        if not self._forked():
            alone(self._mutex, self._drop_unused)

    def _drop_unused(self) -> None:
        # At interpreter exit the kernel frees everything, and CUDA may be gone already.
        if self._closed and not self._users and not self._finalizing():
            self._drop()

    @property
    def users(self) -> int:
        """The number of users that hold it."""
        return len(self._users)

    @property
    def in_parts(self) -> bool:
        """Whether parts of it are handed out, which are used again once they are free."""
        return any(isinstance(user, Parts) for user in tuple(self._users))

    def _release(self) -> None:
        if not self._users:
            self._give_back()

    def _give_back(self) -> None:
        if self._undo is not None:
            self._undo.close()

    def _drop(self) -> None:
        """Release it because it is no longer referenced, or its last hold ended."""
        self._give_back()

    def __del__(self) -> None:
        if self._closed or self._finalizing():
            return
        self._closed = True
        if not self._users and not self._forked():
            self._drop()


class Lasting:
    """A user that may stay while the memory is detached: it comes back at the same addresses."""


class Parts(Lasting):
    """One that uses parts of the memory again: an arena, or the sender of a part."""


class Hold:
    """A user of an owner, until the end of a ``with`` block or until it is dropped.

    Raises Closed, Forked, Detached.
    """

    _owner: Owner | None = None
    _finalizing = staticmethod(sys.is_finalizing)

    def __init__(self, owner: Owner, kind: type = object) -> None:
        self._use = kind()
        owner.hold(self._use)
        self._owner = owner

    def end(self) -> None:
        """End the hold. May be called again."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.let_go(self._use)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.end()

    def __del__(self) -> None:
        if not self._finalizing():
            self.end()
