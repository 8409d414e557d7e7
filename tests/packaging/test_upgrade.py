"""What becomes of a broker's regions when another version takes its place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import gdrpy
from serving import BrokerProcess, StartServing, start_serving

__all__ = ["start_serving"]

OLD = "0.0.1"
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
VERSION = tomllib.loads(PROJECT.read_text())["project"]["version"]


def version_of(broker: BrokerProcess) -> str:
    """What its metrics say."""
    url = f"http://127.0.0.1:{broker.ready['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=20) as answer:
        (line,) = (line for line in answer if line.startswith(b"gdrpy_broker_info"))
    return line.decode().split('"')[1]


@pytest.fixture
def installed(site: Path, tmp_path: Path) -> Path:
    """A folder with the wheel, which says that it is of an older version."""
    folder = tmp_path / "installed"
    shutil.copytree(site, folder)
    (information,) = folder.glob("gdrpy-*.dist-info")
    metadata = information / "METADATA"
    metadata.write_text(
        metadata.read_text().replace(f"\nVersion: {VERSION}\n", f"\nVersion: {OLD}\n")
    )
    information.rename(folder / f"gdrpy-{OLD}.dist-info")
    return folder


@pytest.fixture
def upgrade(site: Path, installed: Path) -> Callable[[], None]:
    """Puts the wheel in the older version's place, as pip does."""

    def upgrade() -> None:
        shutil.rmtree(installed)
        shutil.copytree(site, installed)

    return upgrade


@pytest.fixture
def old_broker(start_serving: StartServing, installed: Path) -> BrokerProcess:
    # Safe: the checkout that it is started in is not what it imports.
    return start_serving("--metrics", "127.0.0.1:0", PYTHONPATH=str(installed), PYTHONSAFEPATH="1")


class TestUpgradeOfARunningBroker:
    def test_keeps_the_regions_and_who_holds_them(
        self, old_broker: BrokerProcess, upgrade: Callable[[], None]
    ) -> None:
        assert version_of(old_broker) == OLD
        with gdrpy.connect(old_broker.socket) as client:
            client.put("table", bytearray(b"of the old one"), mode=0o640)
            held = client.get("table")
            upgrade()
            old_broker.restart()
            assert version_of(old_broker) == VERSION
            with client.get("table", gpu=False) as again:
                assert again.read() == held.read() == b"of the old one"
            held.write(b"by a client")
            held.close()
            with client.get("table", gpu=False) as again:
                assert again.read(11) == b"by a client"

    def test_lets_clients_of_the_old_version_go_on(
        self, old_broker: BrokerProcess, installed: Path, upgrade: Callable[[], None]
    ) -> None:
        code = (
            "import gdrpy, sys; broker = gdrpy.connect(sys.argv[1]);"
            "region = broker.allocate('counter', 4); region.write(b'1111');"
            "print(gdrpy.__version__, flush=True); input();"
            "print(broker.get('counter', gpu=False).read(4), region.read(4))"
        )
        with subprocess.Popen(
            [sys.executable, "-P", "-c", code, old_broker.socket],
            env=os.environ | {"PYTHONPATH": str(installed)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == f"{OLD}\n"
            upgrade()
            old_broker.restart()
            assert client.communicate("\n", 30)[0] == "b'1111' b'1111'\n"
