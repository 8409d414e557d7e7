"""Follow the README's first two sections as a user who has only them, and print how it went.

``python tests/docs/newcomer.py > transcript`` clones this checkout into an empty folder and runs
the README's commands there, each terminal's in its own shell. It stops at the first that fails.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

TOP = Path(__file__).parents[2]
#: What a shell says when a command has ended, and with which status.
END = "-- end of command, status "


class Terminal:
    """An interactive user's shell: one command after another, each seen to its end."""

    def __init__(self, name: str, folder: str, begun: float) -> None:
        self.name = name
        self.begun = begun
        self.shell = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=os.environ | {"PIP_QUIET": "2"},  # where this machine's pip looks is its own affair
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def type(self, command: str, until: str = END) -> None:
        """Run a command, and show what it says until it ends or says ``until``."""
        print(f"[{time.monotonic() - self.begun:5.1f} s, {self.name}] $ {command}", flush=True)
        self.shell.stdin.write(f"{command}\necho '{END}'$?\n")
        self.shell.stdin.flush()
        for line in self.shell.stdout:
            if line.startswith(END):
                if line != f"{END}0\n":
                    sys.exit(f"it failed: {line}")
                return
            print(line, end="", flush=True)
            if until in line:
                return

    def interrupt(self) -> None:
        """Ctrl-C, to what runs in it and to its shell."""
        os.killpg(self.shell.pid, signal.SIGINT)
        self.shell.stdin.close()
        self.shell.wait()


def commands(section: str) -> list[list[str]]:
    """The commands of each console block of a section of the README."""
    text = (TOP / "README.md").read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [re.findall(r"^\$ (.*?)(?: +#.*)?$", block, re.MULTILINE) for block in blocks]


def main() -> None:
    with TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "-q", TOP, f"{folder}/gdrpy"], check=True)
        follow(folder)


def follow(folder: str) -> None:
    """Type the README's commands in a folder that has a checkout."""
    (installing,) = commands("Install")
    (serving, working) = commands("Two processes")
    begun = time.monotonic()
    first, second = (Terminal(f"terminal {number}", folder, begun) for number in (1, 2))
    try:
        for command in installing:
            first.type(command)
        first.type(*serving, until="serving at ")
        second.type(*(one for one in installing if one.startswith("source ")))
        for command in working:
            second.type(command)
        print(f"[{time.monotonic() - begun:5.1f} s] done")
    finally:
        first.interrupt()
        second.interrupt()


if __name__ == "__main__":
    main()
