"""The killer that other tests use: who is disarmed lives, or was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from killing import Killer

#: For each number that it reads it forks a child, which says its own number, takes some steps
#: in each of so many turns, and ends; then it says how the child ended.
PROGRAM = """
import os, sys
for line in sys.stdin:
    child = os.fork()
    if not child:
        print(os.getpid(), flush=True)
        for _ in range(int(line)):
            os.close(os.dup(0))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
TURNS = 1000
FOR_EVER = 1 << 60


class Children:
    """Children of the program, each of which steps on by itself while it is armed and disarmed."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.killer = Killer(folder)
        self._program = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                env=os.environ | self.killer.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )

    def arm_one(self, turns: int, steps: int) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(b"%d\n" % turns)
        self._program.stdin.flush()
        self.killer.arm(self._number(), steps)

    def end(self) -> int:
        """The exit status of the one that was armed; negative is a signal."""
        return self._number()

    def _number(self) -> int:
        assert self._program.stdout is not None
        return int(self._program.stdout.readline())


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    with ExitStack() as stack:
        yield Children(tmp_path, stack)


def test_who_is_disarmed_before_the_step_lives(children: Children) -> None:
    children.arm_one(TURNS, 1 << 30)
    assert children.killer.disarm() > 0
    assert children.end() == 0


def test_who_is_not_disarmed_is_killed(children: Children) -> None:
    children.arm_one(FOR_EVER, 100)
    assert children.end() == -signal.SIGKILL


def test_who_is_disarmed_about_then_lives_or_is_killed_as_it_is_told(children: Children) -> None:
    for steps in [*range(1, 200)] * 3:
        children.arm_one(TURNS, steps)
        lives = children.killer.disarm() > 0
        assert children.end() == (0 if lives else -signal.SIGKILL), steps
