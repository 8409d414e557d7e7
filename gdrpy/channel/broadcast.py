"""One producer to several kernels: each has its ring, and gets every record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from gdrpy.channel.channel import Channel
from gdrpy.channel.named import as_seconds
from gdrpy.channel.ring import Rooted
from gdrpy.common.resource import Closing
from gdrpy.errors import Closed, Timeout


class Broadcast(Rooted, Closing):
    """Channels that get the same records, each its kernel. Named ones may be among them.

    Args:
        channels: The channels, of equal ``record_nbytes``.

    Threads may share it, but not push at the same time. Other producers of the channels may.

    Raises TypeError, ValueError.
    """

    def __init__(self, channels: Iterable[Channel]) -> None:
        given = tuple(channels)
        for channel in given:
            if not isinstance(channel, Channel):
                raise TypeError(f"Broadcast: channels must be Channels, not {channel!r:.80}")
        if len({channel.record_nbytes for channel in given}) != 1:
            raise ValueError(
                f"Broadcast: channels must be one or more, of equal record_nbytes, not "
                f"{[channel.record_nbytes for channel in given]}"
            )
        #: The channels.
        self.channels = given
        #: Bytes of a record.
        self.record_nbytes: int = given[0].record_nbytes
        self._most = min(channel.capacity for channel in given)

    def push(self, record: Any, timeout: float | None = None) -> None:
        """Push one record to all channels, once all have room for it.

        While one has none, this waits up to `timeout` seconds, and no channel gets the record.
        Raises as :meth:`gdrpy.Channel.push`; the message says of which channel.
        """
        self._push("push", record, 1, _until("push", timeout))

    def push_many(self, records: Any, timeout: float | None = None) -> None:
        """Push the records of a contiguous buffer in order, like :meth:`push`.

        As many at once as the smallest ring holds. If this raises, the first ones may have been
        pushed: see :attr:`gdrpy.Channel.pushed`.
        """
        view = memoryview(records).cast("B")
        count, rest = divmod(view.nbytes, self.record_nbytes)
        if rest:
            raise ValueError(
                f"Broadcast.push_many: a record has {self.record_nbytes} bytes, and {view.nbytes} "
                f"is not a multiple"
            )
        until = _until("push_many", timeout)
        for first in range(0, count, self._most):
            some = min(self._most, count - first)
            start = first * self.record_nbytes
            self._push("push_many", view[start : start + some * self.record_nbytes], some, until)

    def _push(self, call: str, records: Any, count: int, until: float) -> None:
        while not all(self._room(call, number, count) for number in range(len(self.channels))):
            for number, channel in enumerate(self.channels):
                if not self._asked(call, number, channel._await_room, count, _left(until)):
                    raise Timeout(
                        f"Broadcast.{call}: {self._told(number)} has no room for {count} records, "
                        f"and nothing was taken in time; no channel got them"
                    )
        push = "push" if call == "push" else "push_many"
        for number, channel in enumerate(self.channels):
            self._asked(call, number, getattr(channel, push), records, _left(until))

    def _room(self, call: str, number: int, count: int) -> bool:
        """Whether a channel has room now. Raises Closed."""
        await_room = self.channels[number]._await_room
        return bool(self._asked(call, number, await_room, count, 0.0))

    def _asked(self, call: str, number: int, do: Callable[..., Any], *args: Any) -> Any:
        """What a channel's call returns; its errors say of which channel."""
        try:
            return do(*args)
        except (Closed, Timeout) as error:
            words = str(error).partition(": ")[2]
            raise type(error)(f"Broadcast.{call}: {self._told(number)}: {words}") from error

    def _told(self, number: int) -> str:
        return f"channel {number} of {len(self.channels)} ({self.channels[number]!r})"

    @property
    def closed(self) -> bool:
        """Whether all channels are closed."""
        return all(channel.closed for channel in self.channels)

    def close(self) -> None:
        """Close all channels. May be called again."""
        for channel in self.channels:
            channel.close()

    def __repr__(self) -> str:
        return f"<Broadcast to {len(self.channels)} channels>"


def _until(call: str, timeout: Any) -> float:
    """The time of time.monotonic() at the end of a timeout. Raises ValueError."""
    seconds = as_seconds(f"Broadcast.{call}", "timeout", timeout)
    return math.inf if seconds is None else time.monotonic() + seconds


def _left(until: float) -> float | None:
    """The timeout that is left."""
    return None if until == math.inf else max(0.0, until - time.monotonic())
