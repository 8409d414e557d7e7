"""Calls of a client that Ctrl-C ends half-way; ``tests/broker/interrupts.py`` makes longer runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import interrupts

#: Of which calls not all bytecodes are tried, and every which one is.
STEP = 13
INTERRUPTS = 300


@pytest.fixture(scope="module")
def client() -> Iterator[interrupts.Client]:
    """A client, and its broker."""
    with interrupts.client_of_its_own() as made:
        yield made


class TestInterruptedCall:
    @pytest.mark.parametrize("name", interrupts.CALLS)
    def test_leaves_nothing_behind_at_any_bytecode(self, client, name):
        tried = interrupts.at_every_bytecode(client, name, 1 if name == "get" else STEP)
        assert tried > 100
        assert client.leaks == []

    def test_leaves_nothing_behind_at_any_moment(self):
        report = interrupts.run(INTERRUPTS, seed=3)
        assert report["interrupts"] >= INTERRUPTS
        assert report["leaks"] == 0
