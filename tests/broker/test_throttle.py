"""What reaches the broker's log of what its clients make it say."""

from __future__ import annotations

import logging
from contextlib import ExitStack

import pytest

from brokers import Broker
from gdrpy.broker.server.quotas import PROCESS_CONNECTIONS
from gdrpy.broker.server.throttle import LIMIT, SECONDS, Throttle


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("broker", logging.WARNING, "", 0, message, args, None)


class TestThrottle:
    def test_lets_ten_of_a_kind_through_and_says_of_the_rest_when_its_time_is_over(self) -> None:
        now = 100.0
        throttle = Throttle(lambda: now)
        through = [throttle.filter(record("refused %d", number)) for number in range(500)]
        assert through == [True] * LIMIT + [False] * (500 - LIMIT)
        assert throttle.filter(record("another kind"))
        now += SECONDS
        late = record("refused %d", 7)
        assert throttle.filter(late)
        assert late.getMessage() == "refused 7 (and 490 more like it since the last one)"
        again = record("refused %d", 8)
        assert throttle.filter(again)
        assert again.getMessage() == "refused 8"


class TestFlood:
    @pytest.mark.parametrize("kind", ["refused connections", "nonsense"])
    def test_leaves_a_few_lines_in_the_log(self, kind: str, broker: Broker) -> None:
        with ExitStack() as stack:
            if kind == "nonsense":
                for _ in range(100):
                    client = stack.enter_context(broker.client())
                    for _ in range(16):
                        client.send_bytes(b"nonsense")
            else:
                for _ in range(PROCESS_CONNECTIONS):
                    stack.enter_context(broker.client())
                for _ in range(100):
                    refused = stack.enter_context(broker.client(hello=False))
                    assert refused.receive()["error"] == "QuotaExceeded"
        with broker.client() as client:
            client.ok("status")
        words = {"nonsense": "malformed packets", "refused connections": "refused a connection"}
        assert broker.log.read_text().count(words[kind]) == LIMIT
