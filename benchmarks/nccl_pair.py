"""Two ranks as processes, one for each GPU, that carry out requests together."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RANK = (sys.executable, str(Path(__file__).resolve().parent / "nccl_rank.py"))

#: Seconds to wait for the answer of a rank.
_PATIENCE = 90
#: Seconds until a rank must end after its peer was killed.
_GRIEF = 30


class RankFailed(Exception):
    """A rank ended, or did not answer; the message has the end of its output."""


class Pair:
    """Two ranks in an environment of theirs, whose standard error goes to files in ``folder``.

    Raises RankFailed if they do not meet; what all files in the folder say goes with it. No rank
    outlives close().
    """

    def __init__(
        self, environment: Mapping[str, str], folder: Path, command: Sequence[str] = RANK
    ) -> None:
        port = free_port()
        self.folder = folder
        self._ranks: list[subprocess.Popen[str]] = []
        try:
            for rank in range(2):
                with (folder / f"rank-{rank}.stderr").open("w") as errors:
                    self._ranks.append(
                        subprocess.Popen(
                            [*command, str(rank), str(port)],
                            env={**os.environ, **environment},
                            stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE,
                            stderr=errors,
                            text=True,
                            start_new_session=True,
                        )
                    )
            self.versions = self._answers()[0]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, action: str, *arguments: object) -> list[Any]:
        """Have both do something; the answer of each. Raises RankFailed."""
        for rank in self._ranks:
            assert rank.stdin is not None
            try:
                rank.stdin.write(json.dumps([action, *arguments]) + "\n")
                rank.stdin.flush()
            except BrokenPipeError:
                raise self._failure(self._ranks.index(rank)) from None
        return self._answers()

    def kill_one(self) -> str:
        """Kill rank 1 with SIGKILL, and see rank 0 end; how it ended, in words."""
        self._ranks[1].kill()
        self._ranks[1].wait()
        try:
            status = self._ranks[0].wait(_GRIEF)
        except subprocess.TimeoutExpired:
            self.close()
            return f"was ended after {_GRIEF} s"
        return f"ended by itself, {_status_words(status)}"

    def close(self) -> None:
        """End both: by the end of their input, or else by SIGKILL."""
        for rank in self._ranks:
            assert rank.stdin is not None
            try:
                rank.stdin.close()
            except BrokenPipeError:
                continue
        for rank in self._ranks:
            try:
                rank.wait(_GRIEF)
            except subprocess.TimeoutExpired:
                os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()
            assert rank.stdout is not None
            rank.stdout.close()

    def _answers(self) -> list[Any]:
        """A line of each; a rank that says nothing for too long is killed, which ends its line."""
        timer = threading.Timer(_PATIENCE, self._kill)
        timer.start()
        try:
            lines = []
            for number, rank in enumerate(self._ranks):
                assert rank.stdout is not None
                line = rank.stdout.readline()
                if not line:
                    raise self._failure(number)
                lines.append(json.loads(line))
            return lines
        finally:
            timer.cancel()

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.kill()

    def _failure(self, number: int) -> RankFailed:
        self._kill()
        status = self._ranks[number].wait()
        files = sorted(self.folder.iterdir())
        said = "".join(path.read_text(errors="replace")[-2000:] for path in files)
        return RankFailed(f"rank {number} ended, {_status_words(status)}:\n{said}")


def _status_words(status: int) -> str:
    if status < 0:
        return f"by {signal.Signals(-status).name}"
    return f"with exit status {status}"


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
