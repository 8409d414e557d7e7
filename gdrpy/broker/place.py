"""Where the broker's socket is, if nobody says so."""

from __future__ import annotations

import errno
import os

from gdrpy.broker import unix as _unix
from gdrpy.errors import PermissionDenied

VARIABLE = "GDRPY_SOCKET"
_SYSTEM = "/run/gdrpy/broker.sock"


def serve_path() -> str:
    """Where a broker listens: ``$GDRPY_SOCKET``, root's in ``/run``, a user's in their folder.

    Raises PermissionError where somebody else made that folder first.
    """
    path = os.environ.get(VARIABLE)
    if path:
        return path
    if os.geteuid() == 0:
        return _SYSTEM
    return _own()


def connect_path() -> str:
    """Where a client looks: as :func:`serve_path`, and at the system's where the user has none.

    Raises PermissionDenied where there is neither, since somebody else made the user's folder.
    """
    path = os.environ.get(VARIABLE)
    if path:
        return path
    if os.geteuid() == 0:
        return _SYSTEM
    try:
        own = _own()
    except OSError as error:
        if _is_there(_SYSTEM):
            return _SYSTEM
        raise PermissionDenied(
            error.errno or errno.EPERM, f"looking for a broker: {error.strerror}"
        ) from error
    return own if os.path.exists(own) or not _is_there(_SYSTEM) else _SYSTEM


def _is_there(path: str) -> bool:
    """Whether something is at a path, also where this user may not look."""
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _own() -> str:
    return os.path.join(_unix.private_folder(), "gdrpy", "broker.sock")
