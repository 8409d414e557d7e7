"""Where the broker's socket is, if nobody says so."""

from __future__ import annotations

import os

from gdrpy import _unix

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
    """Where a client looks: as :func:`serve_path`, and at the system's where the user has none."""
    path = os.environ.get(VARIABLE)
    if path:
        return path
    if os.geteuid() == 0:
        return _SYSTEM
    own = _own()
    return own if os.path.exists(own) or not os.path.exists(_SYSTEM) else _SYSTEM


def _own() -> str:
    return os.path.join(_unix.private_folder(), "gdrpy", "broker.sock")
