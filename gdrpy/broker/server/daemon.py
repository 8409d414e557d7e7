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
from dataclasses import dataclass, field
from pathlib import Path

from gdrpy import _unix
from gdrpy.broker.server.limits import Limits
from gdrpy.broker.server.loop import Server
from gdrpy.broker.server.state import State
from gdrpy.broker.server.store import NoStore, Store
from gdrpy.broker.server.systemd import Notifier

log = logging.getLogger(__name__)

_BACKLOG = 1024
_ENDS = (signal.SIGTERM, signal.SIGINT)
#: Seconds that a broker that ends gives CUDA to begin: a thread cut off in it may hold locks.
_BEGIN_PATIENCE = 10.0


@dataclass(frozen=True)
class Options:
    """How a broker is to run: at the socket ``path``, or on ``listener``, which is there already.

    ``store`` makes what keeps the memory when the broker is killed. ``mode`` and ``group`` are of a
    socket that is made here. ``notifier`` is told that the broker is ready, and that it ends.
    """

    path: str
    limits: Limits
    store: Callable[[], Store] = NoStore
    listener: socket.socket | None = None
    mode: int = 0o600
    group: int | None = None
    strict: bool = False
    notifier: Notifier = field(default_factory=lambda: Notifier(None))


def serve(options: Options, server: str, ready: Callable[[Server, State], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` is called when clients can connect.

    Raises OSError where the socket cannot be had, FileExistsError where another broker has it, and
    KeyboardInterrupt for a signal before it is ready.
    """
    _raise_descriptor_limit()
    with _own_signals(), _locked(options.path, options.mode), _state(options) as state:
        begin = threading.Thread(target=_begin_cuda, args=[options.limits], daemon=True)
        begin.start()
        if not state.recovered:  # nobody waits for what is there already: fail now if at all
            begin.join()
            options.limits.devices  # noqa: B018
        with _listening(options) as listener:
            loop = Server(listener, state, options.limits, server, options.strict)
            if state.recovered:
                threading.Thread(target=_recognize, args=[begin, loop], daemon=True).start()
            for number in _ENDS:
                signal.signal(number, loop.stop)
            # Else a signal that comes just before the loop waits would be seen when it has waited.
            signal.set_wakeup_fd(loop.waker, warn_on_full_buffer=False)
            ready(loop, state)
            options.notifier.tell("READY=1")
            loop.run()
            options.notifier.tell("STOPPING=1")
        begin.join(_BEGIN_PATIENCE)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Let signals that end the broker interrupt it until it serves; as before they are after it."""
    before = [(number, signal.signal(number, signal.default_int_handler)) for number in _ENDS]
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def _state(options: Options) -> Iterator[State]:
    """The state, which is given up at the end; after a failure only if no region is lost by it."""
    state = State(options.store())
    try:
        yield state
    except BaseException:
        if not state.table.regions:
            state.end()
        raise
    state.end()


def _begin_cuda(limits: Limits) -> None:
    with contextlib.suppress(Exception):  # whoever needs it is told
        limits.devices  # noqa: B018
        limits.uuids  # noqa: B018


def _recognize(begin: threading.Thread, loop: Server) -> None:
    """When CUDA has begun, have an earlier broker's regions be told on the GPUs they lie on."""
    begin.join()
    loop.ask(loop.service.recognize)


@contextmanager
def _locked(path: str, mode: int) -> Iterator[None]:
    """Be the only broker at a path, also against one that starts at the same time."""
    _make_folder(Path(path).parent, mode)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(errno.EADDRINUSE, "another broker runs there") from None
        yield
    finally:
        os.close(lock)


def _make_folder(folder: Path, mode: int) -> None:
    """Make the socket's folder, which others may pass through if the socket is for others."""
    if not folder.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if mode & 0o077:
            folder.chmod(0o755)


@contextmanager
def _listening(options: Options) -> Iterator[socket.socket]:
    """The broker's socket, which has its mode and group before anybody can connect."""
    if options.listener is not None:
        with options.listener as listener:
            yield listener
        return
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
