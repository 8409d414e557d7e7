"""gdrpy.broker.temporary(): a broker for the length of a block."""

from __future__ import annotations

import socket

import pytest

import gdrpy
from gdrpy.broker import temporary


class TestTemporaryBroker:
    def test_answers_in_its_block_and_ends_with_it(self) -> None:
        with temporary() as path, gdrpy.connect(path) as broker:
            assert broker.list() == []
        with pytest.raises(gdrpy.BrokerUnavailable, match="no broker answers at"):
            gdrpy.connect(path)

    def test_that_cannot_serve_does_not_enter_the_block(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            metrics = f"127.0.0.1:{taken.getsockname()[1]}"
            with (
                pytest.raises(gdrpy.BrokerUnavailable, match="gdrpy serve did not start: status 2"),
                temporary("--metrics", metrics),
            ):
                raise AssertionError("the block was entered")
