"""libgdrapi on the real module: the programs of tests/gdrapi, with our features and without."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "gdrapi"
BUILT = SOURCES / "build/plain"
PROGRAMS = ["test_maps", "test_handles", "test_queries", "test_fork", "test_threads"]
#: These force BAR1 mappings too, which no driver before 570 knows.
WITH_FORCED_PCIE = ["test_pins", "module_pages"]


@pytest.fixture(scope="session")
def programs() -> Path:
    """Where they are. Built on the host they are up to date, and this does nothing."""
    subprocess.run(["make", "-s", "-C", SOURCES, "plain"], check=True)
    return BUILT


@pytest.fixture(params=["ours", "nvidias"])
def environment(programs: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """Whose module it seems to be."""
    preloaded = {"LD_PRELOAD": str(programs / "hide_features.so")}
    return {**os.environ, **(preloaded if request.param == "nvidias" else {})}


def check(program: Path, environment: dict[str, str] | None = None) -> None:
    ended = subprocess.run([program], capture_output=True, text=True, env=environment)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith(" tests passed\n")


@pytest.mark.parametrize(
    "program",
    [*PROGRAMS, *(pytest.param(name, marks=pytest.mark.newer_driver) for name in WITH_FORCED_PCIE)],
)
def test_program_passes(programs: Path, environment: dict[str, str], program: str) -> None:
    check(programs / program, environment)


@pytest.mark.parametrize("program", ["fuzz", "fuzz_threads"])
def test_random_calls_crash_and_lose_nothing(
    programs: Path, environment: dict[str, str], program: str
) -> None:
    command = [programs / program, "11", "2000"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_copies_of_every_alignment_arrive(programs: Path) -> None:
    check(programs / "test_copies")


def test_killed_program_leaves_nothing_pinned(programs: Path, environment: dict[str, str]) -> None:
    """That nothing is left is seen after each test here."""
    steps = [programs / "steps", "cuda", "open", "pin", "map", "copy", "die"]
    ended = subprocess.run(steps, capture_output=True, text=True, env=with_cuda(environment))
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == "cuda 0\nopen 0\npin 0\nmap 0\ncopy 0\n"


def with_cuda(environment: dict[str, str]) -> dict[str, str]:
    """For a program that does not link the simulated driver."""
    return {**environment, "LD_LIBRARY_PATH": str(SOURCES.parents[1] / "gdrpy/sim")}


@pytest.mark.usefixtures("default_revocable")
def test_freeing_memory_ends_pins_that_are_not_persistent(
    programs: Path, environment: dict[str, str]
) -> None:
    check(programs / "module_revocable", environment)
