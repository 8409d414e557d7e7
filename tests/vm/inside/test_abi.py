"""The module's ABI, tested by C programs that know it from a table of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent.parent / "abi"
PROGRAMS = SOURCES.parent.parent.parent / ".vm/abi"


@pytest.fixture(scope="session")
def programs() -> Path:
    """Where they are. Built on the host they are up to date, and this does nothing."""
    subprocess.run(["make", "-s", "-C", SOURCES], check=True)
    return PROGRAMS


def check(program: Path) -> None:
    ended = subprocess.run([program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " tests passed, 0 failed" in ended.stdout


@pytest.mark.parametrize("part", sorted(source.stem for source in SOURCES.glob("test_*.c")))
def test_part_of_the_abi(programs: Path, part: str) -> None:
    check(programs / part)


@pytest.mark.usefixtures("default_revocable")
def test_module_without_persistent_mappings(programs: Path) -> None:
    check(programs / "default_revocable")
