"""The tutorial, typed by a reader: three terminals, programs saved from the page, every output."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving import MARK, marked, wait_for_ends

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
#: Programs and terminal sessions in the page's order, but for those that say why they are not run.
BLOCKS = re.compile(r"(?<! -->\n)```(python|console)\n(.*?)```", re.DOTALL)
#: A terminal's name, a command, what it says.
STEPS = re.compile(r"^\((\w+)\) \$ (.*)\n((?:(?!\().*\n)*)", re.MULTILINE)
#: What a shell prints before it takes the next command.
READY = "-- ready"

#: What differs from reader to reader, and how it is compared.
DIFFERENT = {
    r"^(\[\d\]) \d+$": r"\1 PID",
    r"(?<=host memory: regions may take ).*": "SIZES",
    r"/\S*/broker\.sock": "SOCKET",
    r"^\d\d:\d\d:\d\d ": "TIME ",
    rf"│ (?:ann|{re.escape(pwd.getpwuid(os.getuid()).pw_name)}) +│$": "│ OWNER │",
    "━+": "━",  # the owner's column is as wide as the name
    "─+": "─",
}
#: How a shell tells that a job has ended: sometimes at its next prompt, sometimes not at all.
ENDED = re.compile(r"\[\d\][+-]? +(Killed|Terminated|Done) .*")


def compared(line: str) -> str:
    for pattern, word in DIFFERENT.items():
        line = re.sub(pattern, word, line)
    return line.rstrip()


class Terminal:
    """A reader's interactive shell, with job control."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        own, theirs = os.openpty()
        mode = termios.tcgetattr(theirs)
        mode[1] &= ~termios.OPOST
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, mode)
        self._shell = subprocess.Popen(
            ["setsid", "--ctty", "bash", "--norc", "--noprofile", "--noediting", "-i"],
            cwd=folder,
            env=os.environ
            | environment
            | {"PS1": "", "PS2": "", "PROMPT_COMMAND": f"echo '{READY}'", "HISTFILE": ""},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._output = os.fdopen(own, "rb+", buffering=0)
        self._unread = b""
        self._lines_until_ready(0)

    def type(self, command: str, lines: int) -> list[str]:
        """What a command says: ``lines`` lines, and more if it says more until the shell is ready.

        A program in the background may say some of them when the shell is ready already.
        """
        self._output.write(f"{command}\n".encode())
        return self._lines_until_ready(lines)

    def _lines_until_ready(self, lines: int) -> list[str]:
        found: list[str] = []
        ready = False
        while not ready or len(found) < lines:
            line = self._line()
            if line == READY:
                ready = True
            elif not ENDED.fullmatch(line):
                found.append(line)
        return found

    def _line(self) -> str:
        while b"\n" not in self._unread:
            self._unread += self._output.read(65536)
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode()

    def close(self) -> None:
        self._shell.send_signal(signal.SIGHUP)
        self._shell.wait()
        self._output.close()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[[str], Terminal]]:
    """The reader's terminals by their names, in one empty folder. They must leave no process."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GDRPY_SOCKET": str(tmp_path / "broker.sock"),
        "TERM": "dumb",
        "COLUMNS": "80",
        MARK: str(tmp_path),
    }
    folder = tmp_path / "empty"
    folder.mkdir()
    terminals: dict[str, Terminal] = {}

    def named(name: str) -> Terminal:
        if name not in terminals:
            terminals[name] = Terminal(folder, environment)
        return terminals[name]

    yield named
    for one in terminals.values():
        one.close()
    assert wait_for_ends(marked(tmp_path)) == []


@pytest.mark.timeout(300)
def test_the_tutorial_does_what_it_says(tmp_path, terminal):
    typed = []
    for kind, text in BLOCKS.findall(PAGE.read_text()):
        if kind == "python":
            (name,) = re.findall(r"\A# (\w+\.py)\n", text)
            (tmp_path / "empty" / name).write_text(text)
            continue
        for name, command, said in STEPS.findall(text):
            lines = [line for line in said.splitlines() if not ENDED.fullmatch(line)]
            expected = [compared(line) for line in lines]
            shown = terminal(name).type(command, len(expected))
            assert [compared(line) for line in shown] == expected, command
            typed.append(command)
    assert typed.count("kill -9 %1; wait %1") == 2  # of a worker, of the broker
