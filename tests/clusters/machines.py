"""Machines of a cluster that do not see each other's brokers: mount namespaces of this one.

Each has a folder of its own at the same path, and in it its broker's socket. The first machine is
the one that the tests run on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: Seconds to wait for anything: a busy machine takes a minute to start an actor.
WAIT = 240.0


class Machine:
    """A mount namespace with an empty folder at ``folder``, and what is run in it."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "broker.sock")
        self._broker: subprocess.Popen[str] | None = None
        self._holder = subprocess.Popen(
            [
                "unshare",
                "--mount",
                "sh",
                "-c",
                f"mount -t tmpfs none {folder} && echo && exec cat",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        if not self._holder.stdout.readline():
            raise PermissionError("unshare --mount, or mount in it, is not allowed")

    def command(self, *words: str) -> list[str]:
        """What to run for a program to be on this machine."""
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", *words]

    def serve(self) -> None:
        """Start its broker."""
        self._broker = serve(self.socket, self.command())

    def stop(self) -> None:
        """End its broker."""
        assert self._broker is not None
        end(self._broker)
        self._broker = None

    def close(self) -> None:
        """End its broker, and let the namespace go."""
        if self._broker is not None:
            self.stop()
        self._holder.communicate(timeout=WAIT)


def serve(socket: str, prefix: list[str]) -> subprocess.Popen[str]:
    """A broker at a path, that clients can connect to."""
    words = [sys.executable, "-m", "gdrpy", "serve", "--json", "--socket", socket]
    broker = subprocess.Popen(
        prefix + words, env=os.environ | {"GDRPY_SIM": "1"}, stdout=subprocess.PIPE, text=True
    )
    assert broker.stdout is not None
    assert broker.stdout.readline()
    return broker


def end(process: subprocess.Popen[str]) -> None:
    """End a process that takes SIGTERM for a wish."""
    process.terminate()
    with process:
        process.wait(WAIT)
