"""The thread that makes digests, without a broker around it."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gdrpy.broker.server import memory
from gdrpy.broker.server.digests import Digests, Job
from gdrpy.errors import OutOfMemory
from gdrpy.memory import file

SHA256 = hashlib.sha256(bytes(10)).hexdigest()
#: A client that waits.
CONNECTION: Any = SimpleNamespace(open=True, uid=1)


@pytest.fixture
def region() -> Iterator[Any]:
    """Ten bytes as the digests know a region."""
    fd = file.create_export(10)
    yield SimpleNamespace(fd=fd, nbytes=10, digest=None)
    os.close(fd)


class Waiting:
    """Digests, and waiting for them."""

    def __init__(self) -> None:
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.digests = Digests(lambda: self._woken.put(None))

    def ask(self, region: Any) -> object:
        """The digest, or the error."""
        self.digests.submit(Job(CONNECTION, 1, region, os.dup(region.fd)))
        self._woken.get(timeout=20)
        ((_, made),) = self.digests.done()
        return made


class TestDigests:
    def test_are_of_the_bytes(self, region: Any) -> None:
        assert Waiting().ask(region) == SHA256

    def test_go_on_after_whatever_failure(
        self, region: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("out of order")

        waiting = Waiting()
        with monkeypatch.context() as patched:
            patched.setattr(memory, "digest", fail)
            made = waiting.ask(region)
        assert type(made) is OutOfMemory
        assert "out of order" in str(made)
        assert waiting.ask(region) == SHA256

    def test_are_made_once_for_all_who_ask(
        self, region: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        region.digest = "ab" * 32
        monkeypatch.setattr(memory, "digest", None)
        assert Waiting().ask(region) == "ab" * 32

    def test_of_one_user_wait_for_each_other_and_not_those_of_another_user(
        self, region: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[int] = []
        begin, ended = threading.Event(), queue.SimpleQueue[None]()

        def digest(fd: int, nbytes: int, buffer: bytearray) -> Generator[None, None, str]:
            for _ in range(3):
                begin.wait(20)
                steps.append(nbytes)
                yield
            return "ab" * 32

        monkeypatch.setattr(memory, "digest", digest)
        digests = Digests(lambda: ended.put(None))
        for number, uid in ((10, 1), (11, 1), (20, 2)):
            connection: Any = SimpleNamespace(open=True, uid=uid)
            one = SimpleNamespace(nbytes=number, digest=None)
            digests.submit(Job(connection, 1, one, os.dup(region.fd)))  # type: ignore[arg-type]
        begin.set()
        for _ in range(3):
            ended.get(timeout=20)
        first, rest = steps[:6], steps[6:]
        assert first in ([10, 20] * 3, [10, 10, 20, 10, 20, 20])  # begun before the last came
        assert rest == [11] * 3
