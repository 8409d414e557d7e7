"""Processes that the tests send things to."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing import resource_sharer
from typing import Any

import children
import pytest


class Worker:
    """A process that is asked for what children.py does, and answers."""

    def __init__(self, method: str) -> None:
        self.context: Any = multiprocessing.get_context(method)
        self._inbox, self._outbox = self.context.Queue(), self.context.Queue()
        self._process = self.context.Process(
            target=children.echo, args=(self._inbox, self._outbox), daemon=True
        )
        self._process.start()

    def tell(self, function: Any, *things: Any) -> None:
        """Have it called there; its answer is to be taken by :meth:`answer`."""
        self._inbox.put((function.__name__, things))

    def answer(self) -> Any:
        """What it answered, or the exception that it raised."""
        return self._outbox.get(timeout=30)

    def ask(self, function: Any, *things: Any) -> Any:
        self.tell(function, *things)
        return self.answer()

    def close(self) -> None:
        self._inbox.put(None)
        self._process.join(30)
        assert self._process.exitcode == 0
        for queue in (self._inbox, self._outbox):
            queue.close()
            queue.join_thread()


@pytest.fixture(scope="package", params=["spawn", "forkserver"])
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    """A process made by either method, for all tests."""
    made = Worker(request.param)
    yield made
    made.close()
    resource_sharer.stop()
