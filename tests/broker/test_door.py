"""Connections that cannot be served, though no limit keeps them out."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gdrpy.broker import unix as _unix
from gdrpy.broker.server import door
from gdrpy.broker.server.quotas import USED_UP, DescriptorReserve
from gdrpy.broker.server.rights import UserMap
from gdrpy.broker.server.turns import Turns
from rawclient import RawClient


class Bed:
    """A door, and why each of its calls that may fail does."""

    def __init__(self, path: str, poll: select.epoll, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.fails = path, dict.fromkeys(("identity_of", "let_in", "register"), 0)
        self._poll, self._turns = poll, Turns[Any]()
        self.served: list[socket.socket] = []
        identity_of = door.identity_of

        def identity(sock: socket.socket, users: UserMap) -> Any:
            self.fail("identity_of")
            return identity_of(sock, users)

        def let_in(sock: socket.socket, _: object) -> None:
            self.fail("let_in")
            self.served.append(sock)

        monkeypatch.setattr(door, "identity_of", identity)
        self._listener = _unix.listen(path, 0o600, 1)
        reserve = DescriptorReserve()
        self._door = door.Door(self._listener, self, self._turns, reserve, {}, UserMap(), let_in)

    def fail(self, call: str) -> None:
        if self.fails[call]:
            raise OSError(self.fails[call], os.strerror(self.fails[call]))

    def register(self, sock: socket.socket, events: int) -> None:
        if sock is not self._listener:
            self.fail("register")
        self._poll.register(sock, events)

    def connect(self) -> RawClient:
        """A client that was accepted, and served or refused."""
        client = RawClient(self.path, hello=False)
        self._door.happened(self._listener.fileno())
        self._turns.next()()
        return client

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    with select.epoll() as poll, closing(Bed(str(tmp_path / "s"), poll, monkeypatch)) as made:
        yield made


class TestConnectionThatCannotBeServed:
    @pytest.mark.parametrize("call", ["identity_of", "let_in"])
    @pytest.mark.parametrize(
        ("number", "reason"),
        [
            (errno.EMFILE, USED_UP),
            (errno.ENFILE, USED_UP),
            (errno.ENOSPC, "the broker cannot serve this connection: No space left on device"),
        ],
    )
    def test_is_told_why(self, call: str, number: int, reason: str, bed: Bed) -> None:
        bed.fails[call] = number
        with bed.connect() as client:
            reply = client.receive()
            assert (reply["id"], reply["error"]) == (0, "QuotaExceeded")
            assert reply["message"] == f"hello: {reason}"
        bed.fails[call] = 0
        with bed.connect():
            assert len(bed.served) == 1

    def test_is_closed_at_once_where_the_broker_cannot_wait_for_its_hello(self, bed: Bed) -> None:
        bed.fails |= {"let_in": errno.ENOMEM, "register": errno.ENOMEM}
        with bed.connect() as client:
            assert "Cannot allocate memory" in client.receive()["message"]
            with pytest.raises(ConnectionError):
                client.receive()
