"""The broker of a module's tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

import gdrpy
from gdrpy.broker import temporary


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    with temporary() as path:
        yield path


@pytest.fixture
def broker(socket: str) -> Iterator[gdrpy.Broker]:
    """A connection to it; its names are gone afterwards."""
    with gdrpy.connect(socket) as broker:
        yield broker
        for one in broker.list():
            with suppress(gdrpy.NotFound):  # a copy went with its region
                broker.delete(one.name)
