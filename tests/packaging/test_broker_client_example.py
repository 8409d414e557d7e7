"""examples/broker_client.c, built by the command that it names itself, and under a sanitizer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gdrpy
from gdrpy.broker import temporary

EXAMPLE = Path(__file__).parents[2] / "examples" / "broker_client.c"
STRICT = ("-Wall", "-Wextra", "-Werror")
SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

Client = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[gdrpy.Broker]:
    with temporary() as path, gdrpy.connect(path) as broker:
        yield broker


@pytest.fixture(scope="module", params=[(), SANITIZED], ids=["plain", "sanitized"])
def client(
    request: pytest.FixtureRequest, broker: gdrpy.Broker, tmp_path_factory: pytest.TempPathFactory
) -> Client:
    """Runs the program with the broker's socket and more words."""
    folder = tmp_path_factory.mktemp("client")
    compiler, *words = re.findall(r"^ \*\t(gcc .+)$", EXAMPLE.read_text(), re.M)[0].split()
    words[words.index(EXAMPLE.name)] = str(EXAMPLE)
    subprocess.run([compiler, *STRICT, *request.param, *words], cwd=folder, check=True)
    where = [sys.executable, "-m", "gdrpy.sim"]
    driver = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()

    def client(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [folder / "client", broker.socket, *words],
            env={"LD_LIBRARY_PATH": str(Path(driver).parent)},
            capture_output=True,
            text=True,
            check=False,
        )

    return client


class TestClientInC:
    @pytest.mark.parametrize(
        ("device", "words", "said"),
        [
            (0, [], "written by mmap\n"),
            (0, ["cuda"], "written by CUDA\n"),
            ("cpu", [], "written by mmap\n"),
        ],
    )
    def test_writes_what_others_read(self, client, broker, device, words, said):
        with broker.allocate("greeting", 100, device=device) as region:
            region.fill(0)
            done = client("greeting", "hello from C", *words)
            assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
            assert region.read(13) == b"hello from C\0"
        broker.delete("greeting")

    def test_runs_by_the_lines_at_its_top(self, broker, tmp_path):
        lines = re.findall(r"^ \*\t(.+)$", EXAMPLE.read_text(), re.M)
        place, serve, again, *rest = lines
        assert (place, serve) == (again, "gdrpy serve --socket $GDRPY_SOCKET")
        (tmp_path / EXAMPLE.name).symlink_to(EXAMPLE)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-e", "-c", "\n".join(rest)],
            cwd=tmp_path,
            env=os.environ | {"PATH": path, "GDRPY_SOCKET": broker.socket},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith("written by mmap\nwritten in C")
        broker.delete("greeting")

    def test_tells_what_the_broker_says(self, client):
        done = client("nowhere", "hello")
        said = "the broker says: get: there is no region of the name 'nowhere'\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", said)

    def test_refuses_what_does_not_fit(self, client, broker):
        broker.allocate("small", 1, device="cpu").close()
        done = client("small", "x" * 4097)
        assert (done.returncode, done.stderr) == (1, "the region has no more than 4096 bytes\n")
        broker.delete("small")
