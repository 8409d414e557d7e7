"""The processes of the benchmark of shared weights, seen from its main process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_WORKER = Path(__file__).with_name("sharedweights_worker.py")

#: Seconds until a process that does not answer is killed.
_PATIENCE = 60.0


class Silent(Exception):
    """A process ended, or did not answer in time; the message says which."""


class Process:
    """A program that answers lines. At the end of its block it is ended, if it runs then."""

    def __init__(
        self, name: str, *words: str, patience: float | None = None, before: Sequence[str] = ()
    ) -> None:
        """``before`` is a command that runs the program."""
        self.name = name
        self._patience = patience
        self._process = subprocess.Popen(
            [*before, sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGTERM)  # which also has a broker give its memory back

    @property
    def pid(self) -> int:
        return self._process.pid

    def hear(self) -> Any:
        """The value in its next line. Raises Silent."""
        assert self._process.stdout is not None
        timer = threading.Timer(self._patience or _PATIENCE, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise Silent(f"{self.name} ended, status {self._process.wait()}")
        return json.loads(line)

    def tell(self, action: str, *arguments: object) -> None:
        """Have it begin something."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([action, *arguments]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Silent(f"{self.name} ended, status {self._process.wait()}") from None

    def ask(self, action: str, *arguments: object) -> Any:
        """Have it do something; its answer. Raises Silent."""
        self.tell(action, *arguments)
        return self.hear()

    def kill(self) -> None:
        """End it without warning, if it runs, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        with self._process as process:
            if process.poll() is None:
                process.send_signal(number)


def broker(socket: str) -> Process:
    """A broker that clients can connect to."""
    process = Process("the broker", "-m", "gdrpy", "serve", "--json", "--socket", socket)
    process.hear()
    return process


def worker(name: str, socket: str, width: int) -> Process:
    """A worker that was started; it says so when it is ready."""
    return Process(name, str(_WORKER), socket, str(width))
