"""The broker as a program: its socket, its lock, the state that it takes over, and its end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import logging
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gdrpy.broker import unix as _unix
from gdrpy.broker.server.loop import Server
from gdrpy.broker.server.quotas import Quotas
from gdrpy.broker.server.rights import UserMap
from gdrpy.broker.server.service import Service
from gdrpy.broker.server.state import State
from gdrpy.broker.server.store import Store
from gdrpy.broker.server.systemd import Notifier

log = logging.getLogger(__name__)

_BACKLOG = 1024
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Seconds between two checks that the broker's files still exist.
_CARE = 1.0
#: Seconds to wait at the end for CUDA's initialization: a thread cut off in it may hold locks.
_BEGIN_PATIENCE = 10.0


@dataclass(frozen=True)
class Options:
    """Options of a broker, at the socket ``path``, or on an existing ``listener``.

    ``store`` makes the store that keeps the memory if the broker is killed. ``mode`` and ``group``
    are for a socket that the broker makes. ``notifier`` reports that the broker is ready, and that
    it ends. Leases of an earlier broker's clients end unless they are resumed within
    ``resume_within`` seconds.
    """

    path: str
    quotas: Quotas
    store: Callable[[], Store] = Store
    listener: socket.socket | None = None
    mode: int = 0o600
    group: int | None = None
    strict: bool = False
    users: UserMap = field(default_factory=UserMap)
    resume_within: float = 3600.0
    notifier: Notifier = field(default_factory=lambda: Notifier(None))


def serve(options: Options, server: str, ready: Callable[[Server, State], None]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP; ``ready`` is called when clients can connect.

    A SIGHUP that is ignored, as below nohup, stays so.

    Raises OSError if the socket cannot be made, FileExistsError if another broker has it, and
    KeyboardInterrupt for a signal before the broker is ready.
    """
    _unix.raise_descriptor_limit()  # a region takes one or two, a client one
    with _own_signals() as ends, Place(options) as place, _state(options) as state:
        begin = threading.Thread(target=_begin_cuda, args=[options.quotas], daemon=True)
        begin.start()
        if not state.recovered:  # no client waits for its regions: fail now if CUDA fails
            begin.join()
            options.quotas.devices  # noqa: B018
        with place.listening() as listener:
            service = Service(state, options.quotas, server, options.strict, options.users)
            loop = Server(listener, service, options.resume_within)
            if state.recovered:
                threading.Thread(target=_recognize, args=[begin, loop], daemon=True).start()
            for number in ends:
                signal.signal(number, loop.stop)
            # Otherwise a signal just before the loop waits would be handled only after the wait.
            signal.set_wakeup_fd(loop.waker, warn_on_full_buffer=False)
            ready(loop, state)
            options.notifier.tell("READY=1")
            threading.Thread(target=_care, args=[place, state, loop], daemon=True).start()
            with _no_collector():
                loop.run()
            options.notifier.tell("STOPPING=1")
        begin.join(_BEGIN_PATIENCE)


@contextmanager
def _own_signals() -> Iterator[Iterable[signal.Signals]]:
    """The signals that end the broker. Until it serves they interrupt it; at last their handlers
    are restored.
    """
    before = {number: signal.getsignal(number) for number in _ENDS}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield before
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Disable the garbage collector, whose pauses grow with the lists that clients send.

    The broker makes no cyclic garbage. A Python without a GIL needs the collector all the same, for
    objects that two threads had.
    """
    before = gc.isenabled()
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextmanager
def _state(options: Options) -> Iterator[State]:
    """The state, which ends with the block; after a failure only if it has no regions."""
    state = State(options.store())
    try:
        yield state
    except BaseException:
        if not state.table.regions:
            state.end()
        raise
    state.end()


def _begin_cuda(quotas: Quotas) -> None:
    with contextlib.suppress(Exception):  # calls that need it raise again
        quotas.devices  # noqa: B018
        quotas.uuids  # noqa: B018
        quotas.gpus  # noqa: B018


def _recognize(begin: threading.Thread, loop: Server) -> None:
    """After CUDA's initialization, renumber the GPUs of an earlier broker's regions."""
    begin.join()
    loop.ask(loop.service.recognize)


def _care(place: Place, state: State, loop: Server) -> None:
    """Restore files of the broker and its keeper that are removed while it serves."""

    def restore() -> None:
        if not place.whole():
            listener = place.restore()
            if listener is not None:
                loop.listen_on(listener)
        if not state.store.whole():
            state.mend_store("its socket was removed")

    while not loop.stopped.wait(_CARE):
        if not (place.whole() and (state.store_lost or state.store.whole())):
            loop.ask(restore)


class Place:
    """A socket's file, its folder, and the lock against another broker at the same path.

    If they are removed while the broker runs, it restores them. It removes only its own files.
    Raises OSError, FileExistsError if another broker runs.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._path = options.path
        self._lock = -1
        #: The identity of our socket's file, if there is one.
        self._file: tuple[int, int] | None = None
        #: Whether the log says that the files cannot be restored.
        self._warned = False

    def __enter__(self) -> Place:
        self._take_lock()
        taken = self._options.listener is None and os.path.lexists(self._path)
        if taken and stat.S_ISSOCK(os.lstat(self._path).st_mode) and _unix.is_live(self._path):
            self.__exit__()
            raise FileExistsError(
                errno.EADDRINUSE,
                "another broker runs there, though its lock was removed: end it first",
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._locked(self._lock):
            with contextlib.suppress(OSError):  # a stale lock file does no harm
                Path(f"{self._path}.lock").unlink()
        os.close(self._lock)

    def _take_lock(self) -> None:
        """Become the only broker at the path, even if another starts at the same time."""
        if self._options.listener is None:
            _make_folder(Path(self._path), self._options.mode, self._options.group)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            lock = os.open(f"{self._path}.lock", flags, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BaseException as error:
                os.close(lock)
                if isinstance(error, BlockingIOError):
                    raise FileExistsError(errno.EADDRINUSE, "another broker runs there") from None
                raise
            if self._locked(lock):
                break
            os.close(lock)  # the broker that held it removed the file before it let go
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = lock

    @contextmanager
    def listening(self) -> Iterator[socket.socket]:
        """The broker's socket, which has its mode and group before a client can connect."""
        if self._options.listener is not None:
            self._file = _unix.identity_of_file(self._path)
            with self._options.listener as passed:
                yield passed
            return
        if _unix.remove_stale(self._path):
            log.info("replaced the stale socket %s", self._path)
        with self._listen() as listener:
            try:
                yield listener
            finally:
                if _unix.identity_of_file(self._path) == self._file:
                    Path(self._path).unlink(missing_ok=True)

    def _listen(self) -> socket.socket:
        options = self._options
        listener = _unix.listen(self._path, options.mode, _BACKLOG, group=options.group)
        self._file = _unix.identity_of_file(self._path)
        return listener

    def whole(self) -> bool:
        """Whether the files exist and are ours."""
        return self._locked(self._lock) and self._file == _unix.identity_of_file(self._path)

    def _locked(self, lock: int) -> bool:
        """Whether the descriptor ``lock`` is the lock file's."""
        held = os.fstat(lock)
        return _unix.identity_of_file(f"{self._path}.lock") == (held.st_dev, held.st_ino)

    def restore(self) -> socket.socket | None:
        """Restore removed files; returns a new listening socket if its file was removed."""
        try:
            listener = self._restore()
        except OSError as error:
            if not self._warned:
                log.error("no new client can reach this broker at %s: %s", self._path, error)
            self._warned = True
            return None
        self._warned = False
        return listener

    def _restore(self) -> socket.socket | None:
        if not self._locked(self._lock):
            self._take_lock()
            log.warning("the lock of %s was removed: made it again", self._path)
        if self._file == _unix.identity_of_file(self._path):
            return None
        if self._options.listener is not None:
            raise FileNotFoundError(
                errno.ENOENT, "the socket was removed, and systemd must make it: restart its unit"
            )
        _unix.remove_stale(self._path)
        listener = self._listen()
        log.warning("the socket %s was removed: made it again", self._path)
        return listener


def _make_folder(path: Path, mode: int, group: int | None) -> None:
    """Make the socket's folder, and let the users that the socket's mode admits pass through it and
    the folders above it.

    Raises PermissionError if a folder keeps them out that has other files or another owner.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    inner = path
    for folder in path.parents:
        if not _lets_in(folder, mode, group):
            _open_up(folder, inner.name, mode)
        inner = folder


def _open_up(folder: Path, inner: str, mode: int) -> None:
    """Let everybody pass through a folder of ours that has nothing but ``inner``, and its lock and
    keeper. Raises PermissionError.
    """
    found = folder.stat()
    alone = {one.name for one in folder.iterdir()} <= {inner, f"{inner}.lock", f"{inner}.keeper"}
    if found.st_uid != os.geteuid() or not alone:
        raise PermissionError(
            errno.EACCES,
            f"its folder {folder} has mode {found.st_mode & 0o7777:04o}, which keeps out the users "
            f"that the socket's mode {mode:04o} admits: chmod the folder",
        )
    folder.chmod(0o755)
    log.info("made %s mode 0755, for users that may connect", folder)


def _lets_in(folder: Path, mode: int, group: int | None) -> bool:
    """Whether the users that a socket's mode admits can pass through a folder, judged by modes."""
    found = folder.stat()
    if not mode & 0o077 or found.st_mode & 0o001:
        return True
    if "system.posix_acl_access" in os.listxattr(folder):
        return True
    own = os.getegid() if group is None else group
    return not mode & 0o007 and found.st_gid == own and bool(found.st_mode & 0o010)
