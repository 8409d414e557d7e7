"""Fixtures of the tests that both clients must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.clients import Client, build

StartClient = Callable[..., Client]


@pytest.fixture(scope="session", params=["python", "c", "c-sanitized"])
def command(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A function that starts a client."""
    return build(request.param, tmp_path_factory.mktemp("client"))


@pytest.fixture
def start_client(command: list[str], fake: object) -> Iterator[StartClient]:
    """Starts clients; each must end well, and before a played broker does."""
    clients: list[Client] = []

    def start(path: str | None = None, **options: Any) -> Client:
        client = Client(command, path, **options)
        clients.append(client)
        return client

    yield start
    for client in clients:
        if client.process.returncode is None:
            client.finish()
