"""Running the command line: whole programs, and in this process."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gdrpy.cli import main
from serving import CHECKOUT, DATA, BrokerProcess, broker_process, start_serving
from support import open_descriptors

__all__ = ["broker_process", "start_serving"]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def simulated_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line chooses its own backend and width, whatever the tests' environment says."""
    monkeypatch.delenv("GDRPY_BACKEND", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def broker(broker_process: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> BrokerProcess:
    """One that the commands find by themselves."""
    monkeypatch.setenv("GDRPY_SOCKET", broker_process.socket)
    return broker_process


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def put(
    broker: BrokerProcess, file: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Puts the file into a region of a name, with more words; what the command said."""

    def run(name: str, *words: str) -> str:
        assert main(["put", name, str(file), *words]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def gdrpy_command(checkout: Path) -> Run:
    """Runs ``gdrpy ...`` as a program of its own, with more environment if wanted."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gdrpy", *words],
            cwd=checkout,
            env=os.environ | {"GDRPY_SIM": "1"} | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def json_of(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs a command with --json in this process: its exit status and the object it printed."""

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        status = main([*words, "--json"])
        return status, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def no_descriptors_leak() -> Iterator[None]:
    """As many descriptors are open after the test as before."""
    before = open_descriptors()
    yield
    assert open_descriptors() == before


#: A command whose stdin is the terminal that it is controlled from, as in a shell.
ON_A_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from gdrpy.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Terminal:
    """A command on a terminal, and what it shows there."""

    def __init__(self, words: Sequence[str], lines: int, columns: int) -> None:
        self._ours, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (lines, columns))
        self._process = subprocess.Popen(
            [sys.executable, "-c", ON_A_TERMINAL, *words],
            cwd=CHECKOUT,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "", "LINES": ""},
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        self._shown = ""

    def wait_for(self, text: str) -> str:
        """The picture that shows a text, of those since what was waited for before."""
        while True:
            for picture in reversed(self._shown.split("\x1b[H")):
                plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", picture)
                if text in plain:
                    self._shown = ""
                    return plain
            self._shown += os.read(self._ours, 1 << 16).decode(errors="ignore")

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    def error_line(self) -> str:
        """The next line on stderr."""
        assert self._process.stderr is not None
        return self._process.stderr.readline()

    def ending(self) -> tuple[int, str]:
        """The exit status, and what is on stderr."""
        _, stderr = self._process.communicate(timeout=30)
        return self._process.returncode, stderr

    def hang_up(self) -> None:
        """Close the terminal, as one closes its window."""
        os.close(self.theirs)
        os.close(self._ours)
        self._ours = self.theirs = -1

    def close(self) -> None:
        """End the command."""
        self._process.kill()
        self._process.communicate()
        if self._ours >= 0:
            self.hang_up()


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Runs a command on a terminal of so many lines and columns."""
    with ExitStack() as undo:

        def run(*words: str, lines: int = 24, columns: int = 80) -> Terminal:
            started = Terminal(words, lines, columns)
            undo.callback(started.close)
            return started

        yield run
