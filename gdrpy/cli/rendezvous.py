"""Where producer and consumer meet: a Unix socket, at a path that both work out alike."""

from __future__ import annotations

import argparse
import errno
import os
import socket
import stat
import struct
import tempfile
from contextlib import ExitStack
from pathlib import Path

from gdrpy.cli.exits import FAILED, UNUSABLE, CommandError

_NAME = "gdrpy-handover.sock"
_CREDENTIALS = struct.Struct("3i")
#: Bytes that the kernel's sockaddr_un has for a path, and its final zero.
_PATH_ROOM = 108


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
    if len(os.fsencode(path)) >= _PATH_ROOM:
        raise argparse.ArgumentTypeError(
            f"{text!r} is too long: a socket's path has {_PATH_ROOM - 1} bytes at most"
        )
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}: make it first")
    return path


def default_path() -> Path:
    """Where to meet if nobody says so: in a folder that only this user can enter.

    Raises CommandError where somebody else made that folder first.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / _NAME
    folder = Path(tempfile.gettempdir()) / f"gdrpy-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise CommandError(
            f"{folder} is not a folder that only you can enter: remove it, or pass --socket",
            UNUSABLE,
        )
    return folder / _NAME


def listen(path: Path, undo: ExitStack) -> tuple[socket.socket, bool]:
    """A listening socket of mode 0600, removed by ``undo``; and whether a stale one made way.

    Raises CommandError.
    """
    replaced = _remove_stale(path)
    listener = undo.enter_context(_socket())
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise CommandError(
            f"cannot listen at {path}: {error.strerror or error}", UNUSABLE
        ) from error
    finally:
        os.umask(mask)
    undo.callback(path.unlink, missing_ok=True)
    listener.listen(1)
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
    peer.settimeout(timeout)
    return peer


def connect(path: Path, timeout: float) -> socket.socket:
    """A connection to the producer. Raises CommandError where there is none."""
    peer = _socket()
    peer.settimeout(timeout)
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


def peer_pid(peer: socket.socket) -> int:
    """The process at the other end, as the kernel tells it."""
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[0])


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _remove_stale(path: Path) -> bool:
    """Remove a socket file that nobody is bound to any more. Raises CommandError for others."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CommandError(f"cannot listen at {path}: {error.strerror}", UNUSABLE) from error
    if not stat.S_ISSOCK(mode):
        raise CommandError(f"{path} is no socket and is left alone: choose another", UNUSABLE)
    if _is_live(path):
        raise CommandError(
            f"another producer listens at {path}: wait for it, or choose another --socket",
            UNUSABLE,
        )
    path.unlink()
    return True


def _is_live(path: Path) -> bool:
    """Whether a process is bound to a socket file.

    A datagram socket asks: it is refused either way, so a producer that listens is not disturbed
    by a connection which it would take for its consumer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex(str(path)) != errno.ECONNREFUSED
