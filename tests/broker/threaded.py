"""A broker in a thread of the tests' own process, whose parts they can replace."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gdrpy.broker import unix
from gdrpy.broker.server.loop import Server
from gdrpy.broker.server.quotas import Quotas
from gdrpy.broker.server.service import Service
from gdrpy.broker.server.state import State
from gdrpy.broker.server.store import Store


@contextmanager
def in_thread(path: str, resume_within: float) -> Iterator[str]:
    """Serve at a path inside the block; returns the path."""
    with ExitStack() as stack:
        listener = stack.enter_context(unix.listen(path, 0o600, 16))
        state = State(Store())
        stack.callback(state.end)
        server = Server(listener, Service(state, Quotas(), "test", False), resume_within)
        serving = threading.Thread(target=server.run)
        serving.start()
        stack.callback(serving.join)
        stack.callback(server.stop)
        yield path
