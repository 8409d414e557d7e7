"""Brokers of a test's own, as programs: fixtures for who imports them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parent.parent
#: Seconds for what takes a fraction of one: a broker's start and end.
_PATIENCE = 30.0
#: What a broker and its keeper are known by: they inherit it.
MARK = "GDRPY_TEST_BROKER"
#: What tests put into a region.
DATA = bytes(range(256)) * 40
#: What JSON calls the first simulated GPU: ordinal, UUID and product name.
GPU = [0, "GPU-67647270-7920-7369-6d75-6c6174656400", "gdrpy simulated GPU"]
SERVE = (sys.executable, "-m", "gdrpy", "serve")


class BrokerProcess:
    """A ``gdrpy serve --json`` with a socket in ``folder``, more words and more environment.

    ``ready`` is what it said when clients could connect. What it logs is appended to ``log_file``.
    A test that provokes errors in the log sets ``errors_expected``. ``program`` runs in place of
    ``gdrpy serve``.
    """

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        environment: dict[str, str],
        program: Sequence[str] = SERVE,
    ) -> None:
        self.folder = folder
        self.socket = str(folder / "broker.sock")
        self.log_file = folder / "broker.log"
        self.errors_expected = False
        self.ready: dict[str, Any] = {}
        self._command = [*program, "--json", "--socket", self.socket, *words]
        self._environment = {"GDRPY_SIM": "1", **environment, MARK: str(folder)}
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """All that brokers of this folder have said on stderr."""
        return self.log_file.read_text()

    def start(self) -> None:
        """Start one and wait until clients can connect."""
        with self.log_file.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=CHECKOUT,
                env=os.environ | self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the broker did not start: {self.log}"
        self.ready = json.loads(line)

    def kill(self) -> None:
        """End it without warning, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it in peace; its exit status."""
        return self._end(number)

    def restart(self) -> None:
        """Kill it and start the next one."""
        self.kill()
        self.start()

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        with self._process as process:
            self._process = None
            return process.wait(_PATIENCE)

    def family(self) -> list[int]:
        """The processes that run: the broker and its keeper."""
        return marked(self.folder)

    def finish(self) -> None:
        """End it, if it runs, and check that it left nothing."""
        status = 0
        killed_by_test = self._process is None and Path(self.socket).exists()
        if self._process is not None:
            status = self.stop()
        if killed_by_test:
            for pid in self.family():
                os.kill(pid, signal.SIGKILL)
        left = wait_for_ends(self.family())
        errors = [
            line for line in self.log.splitlines() if " ERROR " in line or "Traceback" in line
        ]
        assert (status, left) == (0, []), self.log
        assert killed_by_test or not Path(self.socket).exists()
        assert self.errors_expected or not errors, self.log


def marked(folder: Path) -> list[int]:
    """The processes that run with this mark in their environment."""
    mark = f"{MARK}={folder}".encode()
    return [pid for pid in map(int, _numbers("/proc")) if mark in _environment_of(pid)]


def _numbers(folder: str) -> list[str]:
    return [entry.name for entry in os.scandir(folder) if entry.name.isdigit()]


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return []


def wait_for_ends(processes: list[int]) -> list[int]:
    """Those that run on though they had time to end; they are killed."""
    deadline = time.monotonic() + _PATIENCE
    left = []
    for pid in processes:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()  # select() would refuse a descriptor from 1024 up
        poll.register(process, select.POLLIN)
        if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
            left.append(pid)
            signal.pidfd_send_signal(process, signal.SIGKILL)
        os.close(process)
    return left


StartServing = Callable[..., BrokerProcess]


@pytest.fixture
def start_serving(public_path: Path) -> Iterator[StartServing]:
    """Starts brokers: options of ``gdrpy serve``, and more environment by keyword.

    Each has a folder of its own. At the end each is stopped and must have left nothing.
    """
    brokers: list[BrokerProcess] = []

    def start(*words: str, **environment: str) -> BrokerProcess:
        folder = public_path / f"broker-{len(brokers)}"
        folder.mkdir()
        broker = BrokerProcess(folder, words, environment)
        brokers.append(broker)
        broker.start()
        return broker

    yield start
    for broker in brokers:
        broker.finish()


@pytest.fixture
def broker_process(start_serving: StartServing) -> BrokerProcess:
    """A broker on the simulated GPU."""
    return start_serving()
