"""examples/broker_library.c by the commands that it names itself, and docs/broker-library.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

import brokerimport
import gdrpy
from gdrpy import sim
from gdrpy.broker import temporary

#: Sends text to a program; what it says.
Talk = Callable[[str], str]
EXAMPLE = Path(__file__).parents[2] / "examples" / "broker_library.c"


@pytest.fixture(scope="module")
def broker() -> Iterator[gdrpy.Broker]:
    with temporary() as path, gdrpy.connect(path) as broker:
        yield broker


class TestExample:
    def test_runs_by_the_lines_at_its_top(self, need: Callable[..., None], broker, tmp_path):
        need("pkg-config")
        lines = re.findall(r"^ \*\t(.+)$", EXAMPLE.read_text(), re.M)
        place, serve, again, *rest = lines
        assert (place, serve) == (again, "gdrpy serve --socket $GDRPY_SOCKET")
        rest = [line.replace("gcc", "gcc -Wall -Wextra -Wpedantic -Werror", 1) for line in rest]
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
        assert done.stdout == "greeting: version 1, 4096 bytes, written\nwritten in C"
        done = subprocess.run(
            [tmp_path / "greet", "greeting", "twice"],
            env={"GDRPY_SOCKET": str(tmp_path / "none"), "LD_LIBRARY_PATH": _library_path()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.startswith("BrokerUnavailable: connect: no broker answers at ")
        broker.seal("greeting")
        done = subprocess.run(
            [tmp_path / "greet", "greeting", "thrice"],
            env={"GDRPY_SOCKET": broker.socket, "LD_LIBRARY_PATH": _library_path()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (
            1,
            "greeting is read-only here: sealed, or another user's\n",
        )
        broker.delete("greeting")

    def test_is_as_short_as_a_page(self):
        assert 40 <= len(EXAMPLE.read_text().splitlines()) <= 60


def _library_path() -> str:
    return str(brokerimport.SHARED_OBJECT.parent)


class TestImport:
    def test_writes_what_others_read(self, broker, tmp_path):
        program = brokerimport.build(tmp_path, sim.driver_path())
        with broker.allocate("imported", 100) as region:
            done = subprocess.run(
                [program, broker.socket, "imported", "hello by CUDA"],
                env={"LD_LIBRARY_PATH": str(Path(sim.driver_path()).parent)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, ""), done.stdout
            assert done.stdout == f"{region.info().uuid}: written by CUDA\n"
            assert region.read(13) == b"hello by CUDA"
        broker.delete("imported")


class TestEnd:
    @pytest.fixture
    def held(self, broker, tmp_path) -> Iterator[tuple[gdrpy.BrokerRegion, Talk]]:
        """A bound region as its exporter has it, and a C program that holds it."""
        program = brokerimport.build_around(tmp_path, "ended", brokerimport.HOLDER)
        with gdrpy.connect(broker.socket) as exporter:
            region = exporter.allocate("bound", 4096, "cpu", grace=60)
            command = [program, broker.socket, "bound"]
            with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as holder:
                assert holder.stdout is not None
                assert holder.stdout.readline() == "ended: 0\n"
                yield region, lambda text: holder.communicate(text)[0]
            assert holder.returncode == 0

    def test_of_the_exporter_is_seen_though_the_lease_stays(self, held):
        region, talk = held
        region.close()
        assert talk("\n") == "ended: 1, check: 0\n"

    def test_is_seen_by_a_program_that_looked_too_late_for_the_event(self, held, broker):
        region, talk = held
        for _ in range(1500):
            broker.allocate("bound.more", 4096, "cpu").close()
            broker.delete("bound.more")
        region.close()
        assert talk("\n") == "ended: 1, check: 0\n"
