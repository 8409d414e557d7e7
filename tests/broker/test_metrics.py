"""The broker's numbers by HTTP, and what a bad scraper can do to it."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import gdrpy
from gdrpy.broker.server import metrics
from gdrpy.broker.server.metrics import Metrics
from gdrpy.cli import main
from gdrpy.errors import BackendUnavailable
from serving import BrokerProcess, StartServing
from support import open_descriptors

NUMBERS = {
    "regions": 3,
    "names": 2,
    "connections": 4,
    "sessions": 5,
    "leases": 6,
    "used": {"0": 4096, "-1": 0},
    "limits": {"0": 1 << 30, "-1": 1 << 20},
    "users": {"0/1000": 4096},
    "uuids": {"0": "GPU-00"},
    "requests": {"hello": 4, "get": 70},
}


def scrape(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def values(text: str) -> dict[str, float]:
    """The samples by name and labels; every line is a comment or one."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            name, value = re.fullmatch(r"gdrpy_broker_(\S+) ([0-9.e+]+)", line).groups()
            found[name] = float(value)
    return found


@pytest.fixture
def served() -> Iterator[Metrics]:
    """Metrics without a broker."""
    made = Metrics(("127.0.0.1", 0), lambda: NUMBERS, {"version": '1"\\\n'})
    yield made
    made.shutdown()
    made.server_close()


class TestText:
    def test_has_every_number(self, served: Metrics):
        found = values(scrape(served.port))
        del found["start_time_seconds"]
        assert found == {
            'info{version="1\\"\\\\\\n"}': 1,
            "regions": 3,
            "names": 2,
            "connections": 4,
            "sessions": 5,
            "leases": 6,
            'used_bytes{device="0",uuid="GPU-00"}': 4096,
            'used_bytes{device="cpu"}': 0,
            'limit_bytes{device="0",uuid="GPU-00"}': 1 << 30,
            'limit_bytes{device="cpu"}': 1 << 20,
            'user_bytes{device="0",uuid="GPU-00",uid="1000"}': 4096,
            'requests_total{op="get"}': 70,
            'requests_total{op="hello"}': 4,
        }

    def test_says_what_each_is(self, served: Metrics):
        text = scrape(served.port)
        for name in {name.partition("{")[0] for name in values(text)}:
            kind = "counter" if name.endswith("_total") else "gauge"
            assert f"# TYPE gdrpy_broker_{name} {kind}\n" in text
            assert f"# HELP gdrpy_broker_{name} " in text


class TestRequest:
    def test_for_anything_else_is_refused(self, served: Metrics):
        with pytest.raises(urllib.error.HTTPError) as refused:
            scrape(served.port, "/secrets")
        assert refused.value.code == 404

    @pytest.mark.parametrize("error", [TimeoutError("busy"), BackendUnavailable("no GPU")])
    def test_that_the_broker_cannot_answer_is_a_503(self, served: Metrics, error):
        def fail() -> dict:
            raise error

        served._numbers = fail
        with pytest.raises(urllib.error.HTTPError) as refused:
            scrape(served.port)
        assert refused.value.code == 503
        assert str(error) in refused.value.read().decode()

    def test_that_never_ends_makes_way_for_the_next(self, served: Metrics, monkeypatch):
        monkeypatch.setattr(metrics, "PATIENCE", 0.2)
        with socket.create_connection(("127.0.0.1", served.port)) as stalled:
            stalled.sendall(b"GET /metrics HTTP/1.0\r\nX-Slow: ")
            assert values(scrape(served.port))["regions"] == 3
            assert stalled.recv(1) == b""

    def test_that_is_nonsense_changes_nothing(self, served: Metrics):
        with socket.create_connection(("127.0.0.1", served.port)) as noise:
            noise.sendall(b"\0" * 100_000 + b"\r\n\r\n")
        assert values(scrape(served.port))["regions"] == 3


class TestBroker:
    @pytest.fixture
    def broker(self, start_serving: StartServing) -> BrokerProcess:
        return start_serving("--metrics", "127.0.0.1:0")

    def test_counts_what_there_is(self, broker: BrokerProcess):
        with gdrpy.connect(broker.socket) as client, client.allocate("x", 100, gpu=False):
            found = values(scrape(broker.ready["metrics"]))
        assert found["regions"] == found["names"] == found["leases"] == found["connections"] == 1
        uuid = "GPU-67647270-7920-7369-6d75-6c6174656400"
        assert found[f'used_bytes{{device="0",uuid="{uuid}"}}'] == 2 << 20
        assert found['requests_total{op="allocate"}'] == 1

    def test_serves_clients_while_a_scraper_stalls(self, broker: BrokerProcess):
        with socket.create_connection(("127.0.0.1", broker.ready["metrics"])) as stalled:
            stalled.sendall(b"GET /")
            with gdrpy.connect(broker.socket) as client:
                for _ in range(100):
                    client.allocate(None, 1, "cpu").close()
                assert client.status()["regions"] == 0

    def test_answers_scrapers_while_clients_ask(self, broker: BrokerProcess):
        def ask(_: int) -> None:
            with gdrpy.connect(broker.socket) as client:
                for _ in range(50):
                    client.allocate(None, 1, "cpu").close()

        with ThreadPoolExecutor(4) as clients:
            work = [clients.submit(ask, number) for number in range(4)]
            for _ in range(20):
                scrape(broker.ready["metrics"])
            for one in work:
                one.result()
        assert values(scrape(broker.ready["metrics"]))['requests_total{op="allocate"}'] == 200

    def test_does_not_start_where_the_port_is_taken(self, broker: BrokerProcess, capsys, tmp_path):
        address = f"127.0.0.1:{broker.ready['metrics']}"
        path = str(tmp_path / "other.sock")
        words = ["serve", "--metrics", address, "--socket", path, "--keeper", "none"]
        assert main(words) == 2
        assert capsys.readouterr().err.startswith("error: --metrics: cannot serve at 127.0.0.1")
        assert not [one for one in open_descriptors().values() if "gdrpy-journal" in one]
