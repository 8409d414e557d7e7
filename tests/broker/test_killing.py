"""The killer that other tests use: who is disarmed lives, or was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from killing import Killer

#: For each line that it reads it forks a child, which says its number, takes 4,000 steps and
#: ends; then it says how the child ended.
PROGRAM = """
import os, sys
for line in sys.stdin:
    child = os.fork()
    if not child:
        print(os.getpid(), flush=True)
        for _ in range(1000):
            os.close(os.dup(0))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_who_is_disarmed_in_time_lives_and_another_is_killed(tmp_path: Path) -> None:
    killer = Killer(tmp_path)
    ends = set()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | killer.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for steps in [*range(1, 200)] * 3:
            program.stdin.write(b"\n")
            program.stdin.flush()
            killer.arm(int(program.stdout.readline()), steps)
            lives = killer.disarm() > 0
            end = int(program.stdout.readline())
            assert end == (0 if lives else -signal.SIGKILL), steps
            ends.add(end)
        program.stdin.close()
    assert ends == {0, -signal.SIGKILL}
