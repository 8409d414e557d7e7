"""Named rings of a broker, and processes at their ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ringchildren import Notes, Nursery

import gdrpy


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    """The socket of a broker."""
    with gdrpy.broker.temporary() as path:
        yield path


@pytest.fixture
def broker(socket: str, memory: None) -> Iterator[gdrpy.Broker]:
    """A broker that has no region in the end but those of the name."""
    with gdrpy.connect(socket) as made:
        yield made
        for region in made.list():
            if region.grace is None:
                made.delete(str(region.name))


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Notes]:
    """Counters that children write."""
    made = Notes(tmp_path / "notes")
    yield made
    made.close()


@pytest.fixture
def channel(broker: gdrpy.Broker) -> Iterator[gdrpy.Channel]:
    with gdrpy.Channel(16, 8, broker=broker, name="ring") as made:
        yield made


@pytest.fixture
def inbox(broker: gdrpy.Broker) -> Iterator[gdrpy.Inbox]:
    with gdrpy.Inbox(16, 8, broker=broker, name="ring") as made:
        yield made


@pytest.fixture
def link(broker: gdrpy.Broker) -> Iterator[gdrpy.Link]:
    with gdrpy.Link(16, capacity=4, broker=broker, name="ring") as made:
        yield made
