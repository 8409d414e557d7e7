"""Throttling of the broker's log, so that clients cannot fill it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

#: Records of one message that pass within as many seconds.
LIMIT, SECONDS = 10, 60.0


class Throttle(logging.Filter):
    """Passes some records of each message, and later logs how many it dropped."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        #: When each message's period began, and its count since.
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
