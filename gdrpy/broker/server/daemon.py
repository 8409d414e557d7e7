"""The broker as a program: its place, its lock, what it takes over, and its end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gdrpy import _unix
from gdrpy.broker.server.loop import Server
from gdrpy.broker.server.service import Limits
from gdrpy.broker.server.state import State
from gdrpy.broker.server.store import KeeperStore, NoStore, Store

log = logging.getLogger(__name__)

_BACKLOG = 1024


@dataclass(frozen=True)
class Options:
    """How a broker is to run. ``linger`` is the seconds for which a keeper waits for the next."""

    path: str
    limits: Limits
    mode: int = 0o600
    group: int | None = None
    linger: float = 3600.0
    keep: bool = True
    strict: bool = False


def serve(options: Options, server: str, ready: Callable[[Server, State], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` is called when clients can connect.

    Raises OSError where the socket cannot be had, FileExistsError where another broker has it.
    """
    _raise_descriptor_limit()
    with _locked(options.path):
        state = State(_store(options))
        begin = threading.Thread(target=_begin_cuda, args=[options.limits], daemon=True)
        begin.start()
        if not state.recovered:  # nobody waits for what is there already: fail now if at all
            begin.join()
            options.limits.devices  # noqa: B018
        with _listening(options) as listener:
            loop = Server(listener, state, options.limits, server, options.strict)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, loop.stop)
            ready(loop, state)
            loop.run()
        state.end()


def _store(options: Options) -> Store:
    return KeeperStore(f"{options.path}.keeper", options.linger) if options.keep else NoStore()


def _begin_cuda(limits: Limits) -> None:
    with contextlib.suppress(Exception):  # whoever needs it is told
        limits.devices  # noqa: B018


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Be the only broker at a path, also against one that starts at the same time."""
    Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(errno.EADDRINUSE, "another broker runs there") from None
        yield
    finally:
        os.close(lock)


@contextmanager
def _listening(options: Options) -> Iterator[socket.socket]:
    """The broker's socket, which has its mode and group before anybody can connect."""
    if _unix.remove_stale(options.path):
        log.info("replaced the stale socket %s", options.path)
    with _unix.listen(options.path, options.mode, _BACKLOG, group=options.group) as listener:
        try:
            yield listener
        finally:
            Path(options.path).unlink(missing_ok=True)


def _raise_descriptor_limit() -> None:
    """Every region takes a descriptor or two, every client one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
