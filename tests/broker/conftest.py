"""Brokers for the tests: processes of their own, on the simulated GPU, and played ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from brokers import Broker, StartBroker, Template, running
from fake_server import FakeServer, Script
from rawclient import RawClient
from serving import broker_process, start_serving
from support import open_descriptors

__all__ = ["broker_process", "start_serving"]


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    """What forks the brokers of all tests."""
    made = Template()
    yield made
    made.close()


@pytest.fixture
def start_broker(template: Template, tmp_path: Path) -> Iterator[StartBroker]:
    """Starts the test's broker; at the end it still lives, logged no error, and leaves nothing."""
    with ExitStack() as stack:

        def start(**setup: Any) -> Broker:
            return stack.enter_context(running(template, tmp_path, **setup))

        yield start


@pytest.fixture
def broker(start_broker: StartBroker) -> Broker:
    """A broker with nothing in it."""
    return start_broker()


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    """A client that has said hello."""
    with broker.client() as made:
        yield made


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a broker that plays one script for each connection; gives its socket's path."""
    with ExitStack() as servers:

        def start(*scripts: Script) -> str:
            path = str(tmp_path / f"played-{len(list(tmp_path.iterdir()))}.sock")
            return servers.enter_context(FakeServer(path, *scripts)).path

        yield start


@pytest.fixture
def no_descriptors_leak() -> Iterator[None]:
    """As many are open at the end as were: of what the test has closed itself."""
    before = open_descriptors()
    yield
    assert len(open_descriptors()) == len(before), open_descriptors()
