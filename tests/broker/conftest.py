"""Brokers for the tests: processes of their own, on the simulated GPU, and played ones."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, Template
from fake_server import FakeServer, Script
from rawclient import RawClient

from serving import broker_process, start_serving
from support import open_descriptors

__all__ = ["broker_process", "start_serving"]

StartBroker = Callable[..., Broker]


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    """What forks the brokers of all tests."""
    made = Template()
    yield made
    made.close()


@pytest.fixture
def start_broker(template: Template, tmp_path: Path) -> Iterator[StartBroker]:
    """Starts the test's broker; at the end it still lives, logged no error, and leaves nothing."""
    brokers: list[Broker] = []

    def start(**setup: Any) -> Broker:
        if setup.get("uid") is not None:
            tmp_path.chmod(0o777)
            for parent in tmp_path.parents[:3]:
                parent.chmod(0o755)
        brokers.append(Broker(template, tmp_path, **setup))
        return brokers[-1].start()

    yield start
    for broker in brokers:
        if broker.pid:
            keeper = broker.keeper
            assert broker.stop() == 0
            _await_end(keeper)
        assert broker.errors() == []
        assert not Path(broker.path).exists()


def _await_end(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        if not poll.poll(20_000):
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"process {pid} did not end")
    finally:
        os.close(process)


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
