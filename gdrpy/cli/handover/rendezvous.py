"""Where producer and consumer meet: a Unix socket, by default at the same path for both."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from pathlib import Path

from gdrpy.broker import unix as _unix
from gdrpy.cli import options
from gdrpy.cli.exits import FAILED, UNUSABLE, CommandError
from gdrpy.cli.options import CommandParser

_NAME = "gdrpy-handover.sock"


def add_socket(parser: CommandParser) -> None:
    """``--socket``."""
    default = (
        f"(default: {_NAME} in $XDG_RUNTIME_DIR, else in a private folder in the temporary one)"
    )
    about = f"Unix socket to meet at {default}"
    parser.option("--socket", options.socket_path, "PATH", about)


def default_path() -> Path:
    """The default path, in a folder that only this user can enter.

    Raises CommandError if another user made that folder first.
    """
    try:
        return Path(_unix.private_folder()) / _NAME
    except PermissionError as error:
        raise CommandError(f"{error.strerror}, or pass --socket", UNUSABLE) from error


def listen(path: Path, undo: ExitStack) -> tuple[socket.socket, bool]:
    """A listening socket of mode 0600, removed by ``undo``; and whether it replaced a stale one.

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
    """Accept the consumer. Raises CommandError if none comes within ``timeout`` seconds."""
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
    """Connect to the producer. Raises CommandError if no producer waits."""
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
        return f"{path} is not the socket of a producer: pass the producer's path with --socket"
    if error.errno == errno.ECONNREFUSED:
        return (
            f"no producer at {path}: the socket is stale, its producer is gone; start "
            f"'gdrpy producer' first"
        )
    return f"cannot connect to {path}: {error.strerror or error}"
