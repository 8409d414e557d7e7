"""Where producer and consumer meet: a Unix socket, at a path that both work out alike."""

from __future__ import annotations

import argparse
import errno
import os
import socket
from contextlib import ExitStack
from pathlib import Path

from gdrpy import _unix
from gdrpy.cli.exits import FAILED, UNUSABLE, CommandError

_NAME = "gdrpy-handover.sock"


def add_socket(parser: argparse.ArgumentParser) -> None:
    """``--socket``."""
    parser.add_argument(
        "--socket",
        type=socket_path,
        metavar="PATH",
        help=f"Unix socket to meet at (default: {_NAME} in $XDG_RUNTIME_DIR, else in a private "
        "folder under the temporary one)",
    )


def socket_path(text: str) -> Path:
    """A path that a socket can have, in a folder that exists. For ``type=`` of argparse."""
    path = Path(text)
    if len(os.fsencode(path)) >= _unix.PATH_ROOM:
        raise argparse.ArgumentTypeError(
            f"{text!r} is too long: a socket's path has {_unix.PATH_ROOM - 1} bytes at most"
        )
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}: make it first")
    return path


def default_path() -> Path:
    """Where to meet if nobody says so: in a folder that only this user can enter.

    Raises CommandError where somebody else made that folder first.
    """
    try:
        return Path(_unix.private_folder()) / _NAME
    except PermissionError as error:
        raise CommandError(f"{error.strerror}, or pass --socket", UNUSABLE) from error


def listen(path: Path, undo: ExitStack) -> tuple[socket.socket, bool]:
    """A listening socket of mode 0600, removed by ``undo``; and whether a stale one made way.

    Raises CommandError.
    """
    try:
        replaced = _unix.remove_stale(str(path))
        listener = _unix.listen(str(path), 0o600, backlog=1)
    except OSError as error:
        raise CommandError(
            f"cannot listen at {path}: {error.strerror or error}; choose another --socket", UNUSABLE
        ) from error
    undo.callback(listener.close)
    undo.callback(path.unlink, missing_ok=True)
    return listener, replaced


def accept(listener: socket.socket, timeout: float) -> socket.socket:
    """The consumer's connection. Raises CommandError if none comes within ``timeout`` seconds."""
    listener.settimeout(timeout)
    try:
        peer, _ = listener.accept()
    except TimeoutError:
        raise CommandError(
            f"no consumer came within {timeout:g} s: start 'gdrpy consumer'", FAILED
        ) from None
    peer.settimeout(None)
    _unix.set_timeout(peer, timeout)
    return peer


def connect(path: Path, timeout: float) -> socket.socket:
    """A connection to the producer. Raises CommandError where there is none."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _unix.set_timeout(peer, timeout)
    try:
        peer.connect(str(path))
    except OSError as error:
        peer.close()
        raise CommandError(_unreachable(path, error), UNUSABLE) from error
    return peer


def _unreachable(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"no producer at {path}: there is no such socket; start 'gdrpy producer' first"
    if error.errno == errno.EPROTOTYPE or (path.exists() and not path.is_socket()):
        return f"{path} is no socket of a producer: pass --socket the one that it listens at"
    if error.errno == errno.ECONNREFUSED:
        return (
            f"no producer at {path}: the socket is stale, its producer is gone; start "
            f"'gdrpy producer' first"
        )
    return f"cannot connect to {path}: {error.strerror or error}"
