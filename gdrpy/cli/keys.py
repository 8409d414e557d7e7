"""Keys pressed while a command shows something."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

ESCAPE = "\x1b"
_READ = 64


def in_front() -> bool:
    """Whether stdin is a terminal whose keys are for this job, not one in the background."""
    try:
        return sys.stdin is not None and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # not a terminal, or that of another session
        return False


@contextmanager
def pressed(wanted: bool) -> Iterator[Keys]:
    """The keys of stdin one by one, not shown and without Enter, if it is this job's terminal.

    Without ``wanted`` no key is read: another program, such as a pager, may need them.
    """
    if not wanted or not in_front():
        yield Keys(None)
        return
    before = termios.tcgetattr(0)
    try:
        tty.setcbreak(0)
        yield Keys(0)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


class Keys:
    """The keys of a terminal's descriptor, or of nothing."""

    def __init__(self, terminal: int | None) -> None:
        self._terminal = terminal

    def within(self, seconds: float) -> str:
        """The characters of keys pressed within so many seconds; empty if none was pressed.

        Keys that send a sequence, such as arrows, are ignored.
        """
        if self._terminal is None:
            time.sleep(seconds)
            return ""
        if not select.select([self._terminal], [], [], seconds)[0]:
            return ""
        read = os.read(self._terminal, _READ).decode(errors="ignore")
        return "" if read.startswith(ESCAPE) and len(read) > 1 else read
