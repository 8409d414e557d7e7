"""The path of the broker's socket: the default one, and what is wrong with one."""

from __future__ import annotations

import errno
import os
import stat

from gdrpy.broker import unix as _unix
from gdrpy.errors import PermissionDenied

VARIABLE = "GDRPY_SOCKET"
#: Root's, where the clients of every user look if that user has none.
SYSTEM = "/run/gdrpy/broker.sock"


def serve_path() -> str:
    """The path for a broker: ``$GDRPY_SOCKET``, in ``/run`` for root, in the folder of a user.

    Raises PermissionError if another user made that folder first.
    """
    return _fixed() or _own()


def connect_path() -> str:
    """The path for a client: as :func:`serve_path`, but root's if the user has no socket.

    Raises PermissionDenied if root has none either and another user made this user's folder.
    """
    fixed = _fixed()
    if fixed:
        return fixed
    try:
        own = _own()
    except OSError as error:
        if _is_there(SYSTEM):
            return SYSTEM
        raise PermissionDenied(
            error.errno or errno.EPERM, f"looking for a broker: {error.strerror}"
        ) from error
    return own if os.path.exists(own) or not _is_there(SYSTEM) else SYSTEM


def barred(path: str) -> str:
    """The first folder of a path that this user may not enter, else the socket, with its mode."""
    end = path.find("/", 1)
    while end > 0:
        folder = path[:end]
        try:
            os.stat(f"{folder}/.")
        except PermissionError:
            return f"the folder {folder} (mode {stat.S_IMODE(_mode(folder)):04o})"
        except OSError:
            break
        end = path.find("/", end + 1)
    return f"the socket (mode {stat.S_IMODE(_mode(path)):04o})"


def is_no_socket(path: str) -> bool:
    """Whether something other than a socket is at a path."""
    mode = _mode(path)
    return mode != 0 and not stat.S_ISSOCK(mode)


def _mode(path: str) -> int:
    """The mode of a file, 0 if it is gone."""
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0


def _fixed() -> str | None:
    """The path that the environment or root has."""
    return os.environ.get(VARIABLE) or (SYSTEM if os.geteuid() == 0 else None)


def _is_there(path: str) -> bool:
    """Whether a path exists; True if this user may not look there."""
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _own() -> str:
    return os.path.join(_unix.private_folder(), "gdrpy", "broker.sock")
