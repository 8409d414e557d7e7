"""The front of a server of engines: it queues prompts, and replaces engines that end."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gdrpy import cuda
from sharedweights_process import Silent

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
import two_engines
from two_engines import ANSWER, PROMPTS

__all__ = ["ANSWER", "PROMPTS", "Answer", "Engines", "Examples", "Front"]

#: Seconds until an answer must have come.
_PATIENCE = 90.0


class Started(Protocol):
    """The process of an engine."""

    @property
    def pid(self) -> int | None: ...

    def kill(self) -> object: ...

    def wait(self) -> object: ...


class Engines(Protocol):
    """Engines of one model, by a broker's socket and a folder for what they write.

    ``standbys`` of them sleep, or start: that takes seconds. ``log`` is what they said.
    """

    standbys: int
    log: Path

    def __init__(self, path: str, folder: Path) -> None: ...

    def publish(self) -> list[list[int]]:
        """Publish the weights; the right answer to each prompt."""

    def start(self, peer: socket.socket) -> Started:
        """An engine at the other end of a socket.

        It says a line when it sleeps. Each line that it gets is a prompt, and each line of its
        answer a token.
        """


class Examples:
    """Engines of ``examples/two_engines.py``."""

    def __init__(self, path: str, folder: Path) -> None:
        self.standbys = 1 if cuda.simulated() else 4
        self.log = folder / "engines.log"
        self.log.touch()
        self._command = (sys.executable, "-P", two_engines.__file__, path)

    def publish(self) -> list[list[int]]:
        answers: list[list[int]] = json.loads(subprocess.check_output(self._command))
        return answers

    def start(self, peer: socket.socket) -> Started:
        number = peer.fileno()
        with self.log.open("a") as errors:
            command = [*self._command, str(number)]
            return subprocess.Popen(command, pass_fds=[number], stderr=errors)


class Engine:
    """An engine, and what it says, line by line."""

    def __init__(self, engines: Engines) -> None:
        self.asleep = False
        self.peer, other = socket.socketpair()
        with other:
            self.process = engines.start(other)
        self._rest = b""

    def tell(self, prompt: Sequence[int]) -> None:
        """Send a prompt, if it lives."""
        with suppress(OSError):
            self.peer.sendall(json.dumps(prompt).encode() + b"\n")

    def hear(self) -> list[bytes] | None:
        """The lines that have come, None after the last."""
        try:
            said = self.peer.recv(1 << 16)
        except ConnectionResetError:
            said = b""
        *lines, self._rest = (self._rest + said).split(b"\n")
        return lines if said else None


@dataclass
class _Request:
    prompt: Sequence[int]
    right: Sequence[int]
    found: list[int] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Answer:
    """An answer: when it was complete, the engine's process, and whether it was right."""

    when: float
    engine: int | None
    right: bool


class Front:
    """Has a leader answer the prompts of many threads, and a standby take over when it ends."""

    def __init__(self, engines: Engines) -> None:
        self.answers: list[Answer] = []
        self.leader: Engine | None = None
        self._engines = engines
        self._changed = threading.Condition()
        self._requests: deque[_Request] = deque()
        self._ended: list[Engine] = []
        self._standbys = [Engine(engines) for _ in range(engines.standbys + 1)]
        self._closing, self._closed = socket.socketpair()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The requests without an answer."""
        return len(self._requests)

    def ask(self, prompt: Sequence[int], right: Sequence[int]) -> None:
        """Wait for the answer to a prompt. Raises Silent."""
        request = _Request(prompt, right)
        with self._changed:
            self._requests.append(request)
            if self.leader:
                self.leader.tell(prompt)
        if not request.done.wait(_PATIENCE):
            raise Silent(f"no answer in {_PATIENCE:g} s")

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, looked at when anything was heard. Raises Silent."""
        with self._changed:
            if not self._changed.wait_for(condition, _PATIENCE):
                raise Silent(f"engines did not come in {_PATIENCE:g} s")

    def standby(self) -> Engine | None:
        """The standby that takes over next, if one sleeps."""
        return next((one for one in self._standbys if one.asleep), None)

    def answered(self, since: int, killed: set[int | None]) -> float:
        """When the first right answer of a living engine came, of those from ``since`` on."""
        found: list[Answer] = []

        def there() -> bool:
            found[:] = [
                one for one in self.answers[since:] if one.right and one.engine not in killed
            ]
            return bool(found)

        self.wait_until(there)
        return found[0].when

    def close(self) -> None:
        """End all engines."""
        self._closing.close()
        self._thread.join()
        self._closed.close()
        engines = [*self._standbys, *([self.leader] if self.leader else [])]
        for engine in engines:
            engine.peer.close()
        for engine in [*engines, *self._ended]:
            engine.process.wait()

    def _listen(self) -> None:
        while True:
            engines = [*self._standbys, *([self.leader] if self.leader else [])]
            peers = {one.peer: one for one in engines}
            ready, _, _ = select.select([self._closed, *peers], [], [])
            if self._closed in ready:
                return
            with self._changed:
                for peer in ready:
                    self._hear(peers[peer])
                self._changed.notify_all()

    def _hear(self, engine: Engine) -> None:
        lines = engine.hear()
        if lines is None:
            self._replace(engine)
        elif engine is self.leader:
            for line in lines:
                self._take(int(line), engine)
        elif lines:
            engine.asleep = True
        if self.leader is None and (standby := self.standby()):
            self._promote(standby)

    def _replace(self, engine: Engine) -> None:
        engine.peer.close()
        self._ended.append(engine)
        if engine is self.leader:
            self.leader = None
        else:
            self._standbys.remove(engine)
            self._standbys.append(Engine(self._engines))

    def _promote(self, standby: Engine) -> None:
        """Have a standby answer all requests."""
        self.leader = standby
        for request in self._requests:
            request.found.clear()
            standby.tell(request.prompt)
        self._standbys.remove(standby)
        self._standbys.append(Engine(self._engines))

    def _take(self, token: int, engine: Engine) -> None:
        request = self._requests[0]
        request.found.append(token)
        if len(request.found) == len(request.right):
            self._requests.popleft()
            right = request.found == request.right
            self.answers.append(Answer(time.monotonic(), engine.process.pid, right))
            request.done.set()
