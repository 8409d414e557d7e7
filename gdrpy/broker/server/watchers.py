"""Events for watchers, about the regions that they may read."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from gdrpy.broker import replies, requests
from gdrpy.broker.server.connection import EVENTS_LIMIT, Notification, ServerConnection, User
from gdrpy.broker.server.rights import READ, allowed
from gdrpy.broker.server.service import SLICE
from gdrpy.broker.server.table import RegionEntry, Table
from gdrpy.broker.server.turns import Turns

#: The event that stands for dropped ones.
LOST = replies.encode(replies.LOST)


class Watchers:
    """The connections that watch, and their users. ``tell`` sends a packet to one."""

    def __init__(
        self, turns: Turns[Any], tell: Callable[[ServerConnection, bytes], object], table: Table
    ) -> None:
        self._turns = turns
        self._tell = tell
        self._table = table
        self._event = 0
        self._users: dict[int, User] = {}

    def add(self, connection: ServerConnection, request: requests.Watch) -> None:
        """From now on send a connection the events that it asks for."""
        connection.watching = request
        connection.since = self._event + 1
        connection.user.watchers[connection] = None
        self._users[connection.uid] = connection.user

    def remove(self, connection: ServerConnection) -> None:
        """Forget a connection, which is closed and may have watched."""
        connection.user.watchers.pop(connection, None)
        if not connection.user.watchers:
            self._users.pop(connection.uid, None)

    def announce(self, event: str, region: RegionEntry | None) -> None:
        """Queue an event for all watchers, in their users' turns."""
        self._event += 1
        packet = _packet(event, region) if self._users else b""
        holders = None
        if event == "ended" and region is not None and self._users:
            holders = {self._table.sessions[one].identity.process for one in region.leases}
        for user in self._users.values():
            if not user.events:
                self._turns.add(user.uid, functools.partial(self._tell_some, user))
            if len(user.events) < EVENTS_LIMIT:
                user.events.append(Notification(self._event, packet, region, holders))
            else:
                user.events[-1] = Notification(self._event, None, None)

    def _tell_some(self, user: User) -> None:
        """Send a user's oldest event to some of its watchers."""
        event = user.events[0]
        if event.left is None:
            event.left = iter(list(user.watchers))
        some = list(itertools.islice(event.left, SLICE))
        if len(some) < SLICE:
            user.events.popleft()
        if user.events:
            self._turns.add(user.uid, functools.partial(self._tell_some, user))
        for connection in some:
            if connection.open and connection.since <= event.number:
                self._tell_one(connection, event)

    def _tell_one(self, connection: ServerConnection, event: Notification) -> None:
        """Send an event to a watcher, if it may know of it."""
        if event.packet is not None and not _concerns(connection, event):
            return
        if len(connection.outbox) >= (1 if event.packet is None else EVENTS_LIMIT):
            connection.lost = True
        else:
            self._tell(connection, event.packet or LOST)


def _concerns(connection: ServerConnection, event: Notification) -> bool:
    """Whether a watcher asked for an event, and may know of it."""
    wanted, region, who = connection.watching, event.region, connection.identity
    assert wanted is not None
    if region is None:
        return not wanted.ends
    if wanted.ends:
        if event.holders is None:
            return False
        if who.process and who.process in event.holders:  # whatever it may read now
            return True
    elif region.name is None or not region.name.startswith(wanted.prefix):
        return False
    return allowed(who, region, READ)


def _packet(event: str, region: RegionEntry | None) -> bytes:
    if region is None:
        return replies.encode(replies.Event(event))
    return replies.encode(replies.Event(event, region.name, region.number, region.version))
