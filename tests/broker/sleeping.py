"""Regions that sleep, in tests: fixtures, and what is told of them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import gdrpy
from brokers import Broker
from gdrpy.broker import requests
from gdrpy.broker.replies import RegionInfo
from serving import StartServing

DATA = np.arange(1 << 16, dtype=np.uint32)
GPU = f"GPU-{'0' * 8}-0000-0000-0000-{'0' * 12}"


@pytest.fixture
def connected(broker: Broker) -> Iterator[gdrpy.Broker]:
    """A client of the test's broker, which has the sealed region "weights"."""
    with gdrpy.connect(broker.path) as made:
        made.put("weights", DATA, seal=True, metadata={"of": "llama"}).close()
        yield made


@pytest.fixture
def other(broker: Broker, connected: gdrpy.Broker) -> Iterator[gdrpy.Broker]:
    """Another client of it."""
    with gdrpy.connect(broker.path) as made:
        yield made


@pytest.fixture
def region(connected: gdrpy.Broker) -> Iterator[gdrpy.BrokerRegion]:
    with connected.get("weights") as region:
        yield region


@pytest.fixture
def broker_on_two_gpus(start_serving: StartServing) -> str:
    return start_serving(GDRPY_SIM_DEVICES="2").socket


def there(client: gdrpy.Broker) -> dict[str, int | str]:
    """The regions that have names, without the stamps of copies, and where they lie."""
    return {
        re.sub(r"(\.host)/[0-9a-f]{16}$", r"\1", str(info.name)): info.device
        for info in client.list()
    }


def copy_of(client: gdrpy.Broker, name: str = "weights") -> RegionInfo:
    """The one copy of a region."""
    [info] = client.list(f"{name}.host/")
    return client.stat(str(info.name))


def forge(
    client: gdrpy.Broker, name: str, stamp: str, gpu: str = "GPU-x", late: bool = False
) -> None:
    """Publish what looks like a copy of a region, under a name that ends with its stamp.

    It is sealed before, or ``late``.
    """
    with client.create(f"{name}.host/{stamp}", 4096, "cpu", mode=0o644) as draft:
        draft.set_metadata({"gdrpy.copy": [stamp, draft.id, gpu]})
        if not late:
            draft.seal()
        draft.publish()
        draft.seal()


def holds_the_data(region: gdrpy.BrokerRegion) -> bool:
    return np.array_equal(region.numpy(), DATA)


def at_once(
    act: Callable[[gdrpy.Broker, gdrpy.BrokerRegion], object],
    clients: list[gdrpy.Broker],
    regions: list[gdrpy.BrokerRegion],
) -> None:
    """Have each client do something to its region, in threads that begin together."""
    together = threading.Barrier(len(clients))

    def begin(client: gdrpy.Broker, one: gdrpy.BrokerRegion) -> None:
        together.wait()
        act(client, one)

    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(begin, clients, regions))


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have something be done once, right after the reply to the first request of a kind."""

    def do(kind: type[requests.Request], act: Callable[[], object]) -> None:
        asked = gdrpy.Broker._ask_now

        def ask(self: gdrpy.Broker, request: Any, *more: Any) -> Any:
            answer = asked(self, request, *more)
            if isinstance(request, kind):
                monkeypatch.setattr(gdrpy.Broker, "_ask_now", asked)
                act()
            return answer

        monkeypatch.setattr(gdrpy.Broker, "_ask_now", ask)

    return do
