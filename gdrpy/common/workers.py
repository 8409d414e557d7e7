"""Several threads that work through pieces."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

P = TypeVar("P")
T = TypeVar("T")


def by_threads(
    pieces: Iterable[P], most: int, worker: Callable[[], Callable[[P], T]]
) -> Generator[T, None, None]:
    """The results of a function for each piece, in the order in which they are ready.

    Each of up to ``most`` threads calls ``worker`` for its own function. The first error is raised
    here. No thread works any more when the generator is closed.
    """
    waiting = deque(pieces)
    number = len(waiting)
    told: deque[tuple[T] | BaseException] = deque()
    more = threading.Semaphore(0)

    def work() -> None:
        try:
            function = worker()
            while True:
                try:
                    piece = waiting.popleft()
                except IndexError:
                    return
                told.append((function(piece),))
                more.release()
        except BaseException as error:
            told.append(error)
            more.release()

    threads = [threading.Thread(target=work) for _ in range(min(most, number))]
    try:
        for thread in threads:
            thread.start()
        for _ in range(number):
            more.acquire()
            one = told.popleft()
            if isinstance(one, BaseException):
                raise one
            yield one[0]
    finally:
        waiting.clear()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
