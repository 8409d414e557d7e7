"""What the broker says of its clients, so that a client cannot fill its log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

#: Records of a kind that are let through in a row, and the seconds after which as many are again.
LIMIT, SECONDS = 10, 60.0


class Throttle(logging.Filter):
    """Lets some records of each message through, and says then how many it did not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        #: When each message was first seen in this row, and how often since.
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        message = record.msg
        began, count = self._seen.get(message, (now, 0))
        if now - began >= SECONDS:
            if count > LIMIT:
                record.msg = f"{message} (and {count - LIMIT} more like it since the last one)"
            began, count = now, 0
        self._seen[message] = (began, count + 1)
        return count < LIMIT
