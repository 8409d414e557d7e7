"""Third-party programs: built against this library, and run with a time limit."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_DRIVER = "libcuda.so.1"

#: The place of CUDA's toolkit if it is not in PATH.
_TOOLKIT = Path("/usr/local/cuda/bin/nvcc")


@dataclass(frozen=True)
class Done:
    """How a program ended: its exit status, negative for a signal, None if it took too long."""

    status: int | None
    output: str
    seconds: float

    @property
    def how(self) -> str:
        """In words."""
        if self.status is None:
            return f"was ended after {self.seconds:.0f} s"
        if self.status < 0:
            return f"ended by {signal.Signals(-self.status).name}"
        return f"exit status {self.status}"

    def end(self, lines: int = 30) -> list[str]:
        """How it ended, and the last lines of its output."""
        return [self.how, *self.output.splitlines()[-lines:]]


class Program:
    """A program in a separate process group, with its output in a file. close() ends all of it."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None
    ) -> None:
        self._start = time.monotonic()
        self._killed = False
        # To a file: a full pipe would stop a program with much output.
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            self._said.close()
            raise

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def runs(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def done(self, limit: float) -> Done:
        """Wait for its end, for at most ``limit`` seconds."""
        try:
            status: int | None = self._process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        seconds = time.monotonic() - self._start
        self._kill()
        self._said.seek(0)
        return Done(status, self._said.read(), seconds)

    def close(self) -> None:
        """End it, and all processes that it started."""
        self._kill()
        self._said.close()

    def _kill(self) -> None:
        if not self._killed:
            with suppress(ProcessLookupError):  # all of them have ended
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._killed = True


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    limit: float,
    folder: Path | None = None,
) -> Done:
    """Run a program for at most ``limit`` seconds."""
    with Program(command, environment, folder) as program:
        return program.done(limit)


def libraries_in(*folders: Path) -> dict[str, str]:
    """The environment in which programs find their libraries there first."""
    paths = [*map(str, folders), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"LD_LIBRARY_PATH": ":".join(paths)}


def nvcc() -> Path | None:
    """CUDA's compiler, or None."""
    if found := shutil.which("nvcc"):
        return Path(found)
    return _TOOLKIT if _TOOLKIT.exists() else None


def compiler(arguments: Sequence[str], folder: Path) -> Program:
    """nvcc at work in a folder."""
    found = nvcc()
    assert found
    return Program([str(found), "-O2", "-w", *arguments], {}, folder)


def link_libraries(folder: Path, library: Path) -> None:
    """Link libgdrapi.so of ``library`` and the driver's libcuda.so into a folder for -L."""
    (folder / "libgdrapi.so").symlink_to(library / "libgdrapi.so.2")
    (folder / "libcuda.so").symlink_to(_libcuda())


def _libcuda() -> str:
    """The driver's library, as the loader finds it."""
    ctypes.CDLL(_DRIVER)
    found = re.search(r"/\S*libcuda\.so\S*", Path("/proc/self/maps").read_text())
    assert found
    return found[0]
