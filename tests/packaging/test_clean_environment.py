"""The wheel in a virtual environment with nothing else: no compiler, no sources, no checkout."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

#: What a base install pulls in: what pyproject.toml names, and what that needs itself.
BASE = {
    *("gdrpy", "numpy", "cffi", "cuda-bindings", "msgspec", "rich"),
    *("cuda-pathfinder", "markdown-it-py", "mdurl", "pycparser", "pygments"),
}
#: What the interpreter brings along.
PYTHONS_OWN = {"pip", "setuptools"}
BROKER = """
import multiprocessing, gdrpy

def write(socket):
    with gdrpy.connect(socket) as broker, broker.get("clean", gpu=False) as region:
        region.write(b"from another process")

if __name__ == "__main__":
    with gdrpy.broker.temporary() as socket, gdrpy.connect(socket) as broker:
        with broker.allocate("clean", 4096) as region:
            writer = multiprocessing.get_context("spawn").Process(target=write, args=(socket,))
            writer.start()
            writer.join()
            print(region.read(20), gdrpy.__file__)
"""

Run = Callable[..., str]


@pytest.fixture(scope="module")
def environment(dist, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment, with the wheel and what pip gets along with it."""
    folder = tmp_path_factory.mktemp("environment")
    base = Path(sys.base_prefix, "bin/python3")
    subprocess.run([base, "-m", "venv", folder], check=True)
    install(folder, dist.x86_64)
    return folder


def install(environment: Path, *what: str | Path) -> None:
    subprocess.run([environment / "bin/python", "-m", "pip", "install", "-q", *what], check=True)


@pytest.fixture
def run(environment: Path, tmp_path: Path) -> Run:
    """Runs a program of the environment in an empty folder, with no other programs on its path."""

    def run(program: str, *words: str | Path) -> str:
        done = subprocess.run(
            [environment / "bin" / program, *words],
            cwd=tmp_path,
            env={"PATH": str(environment / "bin"), "HOME": str(tmp_path), "GDRPY_SIM": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


class TestBaseInstall:
    def test_pulls_only_what_it_says(self, run: Run, checkout: Path) -> None:
        project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
        assert {re.split(r"[<>=]", line)[0] for line in project["dependencies"]} <= BASE
        listed = json.loads(run("python", "-m", "pip", "list", "--format", "json"))
        assert {entry["name"].lower() for entry in listed} - PYTHONS_OWN == BASE

    def test_fits_together(self, run: Run) -> None:
        assert run("python", "-m", "pip", "check") == "No broken requirements found.\n"

    def test_validates_the_simulated_gpu(self, run: Run) -> None:
        assert run("gdrpy", "validate").splitlines()[-1].endswith("passed, 0 failed")

    def test_copies_by_the_routines_of_a_build_by_gcc(self, run: Run) -> None:
        shown = subprocess.check_output([sys.executable, "-m", "gdrpy", "info", "--json"])
        there, here = json.loads(run("gdrpy", "info", "--json")), json.loads(shown)
        assert there["copy_routines"] == here["copy_routines"]

    def test_serves_regions_to_other_processes(
        self, run: Run, environment: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "program.py").write_text(BROKER)
        assert run("python", "program.py").startswith("b'from another process' " + str(environment))


class TestContract:
    def test_holds(self, run: Run, environment: Path, checkout: Path, tmp_path: Path) -> None:
        install(environment, "pytest", "hypothesis")
        tests = tmp_path / "tests"
        shutil.copytree(checkout / "tests/contract", tests / "contract")
        for name in ("conftest.py", "support.py"):
            shutil.copy(checkout / "tests" / name, tests)
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu\n    large\n")
        summary = run("pytest", "-q", "-p", "no:cacheprovider").splitlines()[-1]
        assert re.fullmatch(r"\d{4} passed in .*", summary), summary


class TestUninstall:
    """Last: it takes the package away."""

    def test_leaves_nothing(self, run: Run, environment: Path) -> None:
        run("python", "-m", "pip", "uninstall", "-q", "-y", "gdrpy")
        assert [*environment.rglob("*gdrpy*")] == []
