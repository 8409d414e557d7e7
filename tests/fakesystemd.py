"""What systemd does for a service, as far as the broker is concerned."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from gdrpy.broker import unix as _unix
from serving import CHECKOUT

#: Puts the descriptors that it was started with where systemd puts them, and becomes the service.
_EXEC = """
import os, sys
fds = [int(fd) for fd in sys.argv[1].split(",") if fd]
high = [os.dup2(fd, 200 + index) for index, fd in enumerate(fds)]
os.closerange(3, 200)
for number, fd in enumerate(high, 3):
    os.dup2(fd, number)
    os.close(fd)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


class FakeSystemd:
    """A service manager for one service in ``folder``, with a socket unit if ``activate``."""

    def __init__(self, folder: Path, *, activate: bool = True) -> None:
        self.socket = str(folder / "broker.sock")
        self.log = folder / "service.log"
        #: What the service has said, but for what it has kept.
        self.told: list[str] = []
        #: Descriptors that it has kept, by name.
        self.store: dict[str, int] = {}
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(folder / "notify"))
        self._listener = _unix.listen(self.socket, 0o600, 64) if activate else None
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str, names: bool = True, **environment: str) -> None:
        """Start the service and wait until it is ready."""
        listeners = [] if self._listener is None else [self._listener.fileno()]
        fds = [*listeners, *self.store.values()]
        labels = [*("broker" for _ in listeners), *self.store]
        program = [sys.executable, "-m", "gdrpy", "serve", *words]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _EXEC, ",".join(map(str, fds)), *program],
                pass_fds=fds,
                cwd=CHECKOUT,
                env=os.environ
                | {
                    "NOTIFY_SOCKET": self._notify.getsockname(),
                    "LISTEN_FDS": str(len(fds)),
                    "LISTEN_FDNAMES": ":".join(labels),
                }
                | environment,
                stdout=log,
                stderr=log,
            )
        self.told.clear()
        while "READY=1" not in self.told:
            self._take_in(30.0)

    def end(self, number: signal.Signals) -> int:
        """End the service by a signal, and take in what it has said; its exit status."""
        assert self._process is not None
        self._process.send_signal(number)
        with self._process as process:
            status = process.wait(30)
        try:
            while True:
                self._take_in(0.0)
        except BlockingIOError:
            return status

    def close(self) -> None:
        """Stop the service, and forget what it had kept."""
        if self._process is not None and self._process.returncode is None:
            self.end(signal.SIGKILL)
        for fd in self.store.values():
            os.close(fd)
        self._notify.close()
        if self._listener is not None:
            self._listener.close()

    def _take_in(self, timeout: float) -> None:
        self._notify.settimeout(timeout)
        data, fds, _, _ = socket.recv_fds(self._notify, 4096, 8)
        lines = dict(line.split("=", 1) for line in data.decode().splitlines())
        name = lines.get("FDNAME", "stored")
        if lines.get("FDSTORE") == "1":
            (self.store[name],) = fds
        elif lines.get("FDSTOREREMOVE") == "1":
            os.close(self.store.pop(name))
        else:
            self.told += data.decode().splitlines()
