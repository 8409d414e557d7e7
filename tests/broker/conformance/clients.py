"""Both clients as processes, driven by lines: the Python client, and the C library by a program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gdrpy

HERE = Path(__file__).parent
PACKAGE = Path(gdrpy.__file__).parent
LIBRARY = PACKAGE / "lib" / "libgdrpy-broker.so.1"
#: Flags of a get, and of a new region.
READONLY, GPU = 1, 2

STRICT = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{PACKAGE / 'include'}")
SANITIZED = (
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-ftrivial-auto-var-init=pattern",  # no zero byte ends a text that was never written
)


class Refused(Exception):
    """An error of a call, by its name."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


def build(kind: str, folder: Path) -> list[str]:
    """The command of a client: "python", "c", or "c-sanitized", with the library's sources."""
    if kind == "python":
        return [sys.executable, str(HERE / "client.py")]
    program = folder / kind
    words = [*STRICT, str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}"]
    if kind == "c-sanitized":
        core = PACKAGE / "_core"
        sources = [*(core / "brokerlib").glob("*.c"), core / "common/forks.c"]
        words = [*STRICT, *SANITIZED, f"-I{core}", "-pthread", *map(str, sources)]
    subprocess.run(["gcc", "-o", program, HERE / "client.c", *words], check=True)
    return [str(program)]


def refusal(call: Callable[..., object], *words: object, **fields: object) -> Refused:
    """How a call is refused."""
    with pytest.raises(Refused) as caught:
        call(*words, **fields)
    return caught.value


class Client:
    """A process with one client, whose calls are methods; connected unless ``path`` is None."""

    def __init__(
        self,
        command: list[str],
        path: str | None = None,
        timeout: float = 10.0,
        reconnect: float = 10.0,
        **environment: str,
    ) -> None:
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(HERE.parent), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        if path is not None:
            self.connect(path, round(1000 * timeout), round(1000 * reconnect))

    def send(self, *words: object) -> None:
        """Send a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next answer. Raises Refused."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the client ended: {self.process.wait()}"
        status, *words = line.rstrip("\n").split("\t")
        if status != "ok":
            raise Refused(words[0], "\t".join(words[1:]))
        answer: dict[str, Any] = json.loads(words[0])
        return answer

    def __getattr__(self, command: str) -> Any:
        def call(*words: object) -> dict[str, Any]:
            self.send(command, *words)
            return self.answer()

        return call

    def allocate(self, name: str | None, nbytes: int = 4096, **fields: Any) -> dict[str, Any]:
        """Allocate, by default memory of the host; as ``create`` and :func:`new`."""
        self.send("allocate", *new(name, nbytes, **fields))
        return self.answer()

    def create(self, name: str, nbytes: int = 4096, **fields: Any) -> dict[str, Any]:
        self.send("create", *new(name, nbytes, **fields))
        return self.answer()

    def await_sleep(self) -> None:
        """Wait until it has obeyed all commands, or waits for something."""
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            pass

    def descriptors(self) -> list[Path]:
        """Its open descriptors, without the standard streams."""
        return [fd for fd in Path(f"/proc/{self.pid}/fd").iterdir() if int(fd.name) > 2]

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.finish(-signal.SIGKILL)

    def finish(self, status: int = 0) -> None:
        """Let it end, and check how it did."""
        with self.process as process:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(20) == status


def new(
    name: str | None,
    nbytes: int,
    device: str = "cpu",
    mode: int = 0o600,
    metadata: bytes = b"",
    flags: int = 0,
) -> tuple[object, ...]:
    """The words for a new region."""
    return name or "-", nbytes, device, mode, metadata.hex(), flags
