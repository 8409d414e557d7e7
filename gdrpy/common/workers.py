"""Several threads that work through pieces."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from queue import SimpleQueue
from threading import Thread, get_ident
from typing import TypeVar

P = TypeVar("P")
T = TypeVar("T")


def by_threads(
    pieces: Iterable[P], most: int, worker: Callable[[], Callable[[P], T]]
) -> Generator[T, None, None]:
    """The results of a function for each piece, in the order in which they are ready.

    Each of up to ``most`` threads calls ``worker`` for its own function; they are fewer if no more
    can be started. The first error is raised here. No thread works any more when the generator is
    closed, however often signal handlers raise meanwhile.

    Raises OSError if no thread can be started.
    """
    waiting = deque(pieces)
    number = len(waiting)
    told: SimpleQueue[tuple[T] | BaseException] = SimpleQueue()
    ended: SimpleQueue[None] = SimpleQueue()
    working: set[int] = set()
    process = os.getpid()
    threads: list[Thread] = []

    def work() -> None:
        working.add(get_ident())
        try:
            function = worker() if waiting else None  # all pieces may be taken by now
            while function:
                try:
                    piece = waiting.popleft()
                except IndexError:
                    return
                told.put((function(piece),))
        except BaseException as error:
            told.put(error)
        finally:
            working.discard(get_ident())
            ended.put(None)

    try:
        for _ in range(min(most, number)):
            thread = Thread(target=work)
            try:
                thread.start()
            except RuntimeError:
                if threads:
                    break
                why = "no thread can be started: end some processes, or raise the limit (ulimit -u)"
                raise OSError(errno.EAGAIN, why) from None
            threads.append(thread)
        for _ in range(number):
            one = told.get()
            if isinstance(one, BaseException):
                raise one
            yield one[0]
    finally:
        waiting.clear()
        raised: BaseException | None = None
        # An interrupted join() takes its thread for one that has ended. Forked children have none.
        while working and os.getpid() == process:
            try:
                ended.get()
            except BaseException as error:
                raised = error
        for thread in threads:
            thread.join()
        if raised is not None:
            raise raised
