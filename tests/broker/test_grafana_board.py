"""The Grafana board in examples/: it is a dashboard, of what the broker exports."""

from __future__ import annotations

import json
import re
import urllib.request
from itertools import combinations
from typing import Any

import pytest
import yaml

import gdrpy
from exampleruns import EXAMPLES
from serving import StartServing

FOLDER = EXAMPLES / "grafana"
BOARD = json.loads((FOLDER / "gdrpy-broker.json").read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
#: A board's panels lie on a grid so many columns wide.
COLUMNS = 24
#: The labels that Prometheus adds.
ADDED = {"instance", "job"}


@pytest.fixture
def exported(start_serving: StartServing) -> dict[str, set[str]]:
    """The metrics of a broker with a region in use, and their labels."""
    broker = start_serving("--metrics", "127.0.0.1:0")
    with gdrpy.connect(broker.socket) as client, client.allocate("x", 100, gpu=False):
        url = f"http://127.0.0.1:{broker.ready['metrics']}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(gdrpy_\w+)(?:\{(.*)\})? ", text, re.M):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def asked(query: str) -> set[str]:
    """The metrics that a query names."""
    return set(re.findall(r"gdrpy_\w+", query))


class TestBoard:
    def test_asks_only_for_what_the_broker_exports(self, exported):
        assert [query for query in QUERIES if not asked(query) <= exported.keys()] == []
        assert [query for query in QUERIES if not asked(query)] == []

    def test_shows_everything_that_the_broker_exports(self, exported):
        assert set().union(*map(asked, QUERIES)) == exported.keys()

    def test_names_only_labels_that_the_metrics_have(self, exported):
        for panel in BOARD["panels"]:
            for target in panel["targets"]:
                query = target["expr"]
                names = {*re.findall(r"(\w+)=", query), *re.findall(r"{{(\w+)}}", str(target))}
                for listed in re.findall(r"by \((.*?)\)", query):
                    names.update(listed.split(", "))
                known = ADDED.union(*(exported[metric] for metric in asked(query)))
                assert names <= known, panel["title"]

    def test_uses_no_variable_but_its_own(self):
        own = {one["name"] for one in BOARD["templating"]["list"]}
        used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD)))
        assert used - own == {"__rate_interval"}

    def test_has_panels_that_grafana_can_lay_out(self):
        panels = BOARD["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        places = []
        for panel in panels:
            x, y, width, height = (panel["gridPos"][key] for key in "xywh")
            assert x + width <= COLUMNS, panel["title"]
            places.append({(x + i, y + j) for i in range(width) for j in range(height)})
        assert all(one.isdisjoint(other) for one, other in combinations(places, 2))

    def test_is_a_dashboard(self):
        for field, kind in (("title", str), ("uid", str), ("schemaVersion", int)):
            assert isinstance(BOARD[field], kind)
        assert "id" not in BOARD  # Grafana gives it one
        for panel in BOARD["panels"]:
            assert panel["type"] in {"stat", "bargauge", "timeseries"}
            assert panel["title"]
            assert panel["description"]
            letters = [target["refId"] for target in panel["targets"]]
            assert letters == [*"ABC"][: len(letters)]


class TestCompose:
    def test_mounts_the_board_and_scrapes_the_documented_port(self):
        compose: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
        (mounted,) = compose["services"]["grafana"]["volumes"]
        source, target, _ = mounted.split(":")
        assert json.loads((FOLDER / source).read_text()) == BOARD
        settings = compose["services"]["grafana"]["environment"]
        assert settings["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == target

        contents = {
            name: yaml.safe_load(one["content"]) for name, one in compose["configs"].items()
        }
        (job,) = contents["scrape"]["scrape_configs"]
        assert job["static_configs"] == [{"targets": ["127.0.0.1:9464"]}]
        (source,) = contents["datasource"]["datasources"]
        assert source["url"] == "http://127.0.0.1:9090"
        assert "--web.listen-address=127.0.0.1:9090" in compose["services"]["prometheus"]["command"]
        (provider,) = contents["boards"]["providers"]
        assert target.startswith(provider["options"]["path"])
