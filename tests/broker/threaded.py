"""A broker in a thread of the tests' own process, whose parts they can replace."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gdrpy.broker import unix
from gdrpy.broker.server.loop import Server
from gdrpy.broker.server.quotas import Quotas
from gdrpy.broker.server.service import Service
from gdrpy.broker.server.state import State
from gdrpy.broker.server.store import Store


class MemoryStore(Store):
    """Keeps descriptors for the next broker, which finds all that one had that was killed."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}

    def recover(self) -> dict[str, int]:
        return {key: os.dup(fd) for key, fd in self.held.items()}

    def hold(self, key: str, fd: int, patience: float = 0.0) -> None:
        self.drop(key)
        self.held[key] = os.dup(fd)

    def drop(self, key: str) -> None:
        if key in self.held:
            os.close(self.held.pop(key))

    def close(self) -> None:
        """Drop all."""
        for key in list(self.held):
            self.drop(key)


def close_memory(state: State) -> None:
    """Close the regions' descriptors, which another broker's process takes with it."""
    for region in state.table.regions.values():
        os.close(region.fd)
        if region.readonly_fd is not None:
            os.close(region.readonly_fd)


@contextmanager
def in_thread(path: str, resume_within: float, store: Store | None = None) -> Iterator[str]:
    """Serve at a path inside the block; returns the path."""
    with ExitStack() as stack:
        listener = stack.enter_context(unix.listen(path, 0o600, 16))
        state = State(store or Store())
        stack.callback(close_memory, state)
        stack.callback(state.end)
        server = Server(listener, Service(state, Quotas(), "test", False), resume_within)
        serving = threading.Thread(target=server.run)
        serving.start()
        stack.callback(serving.join)
        stack.callback(server.stop)
        yield path
