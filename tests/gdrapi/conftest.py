"""The programs of this folder, built, and the environments in which they run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from build import build

HERE = Path(__file__).parent
BUILT = HERE / "build"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def programs() -> Path:
    """A folder for each variant: plain, sanitized, threads."""
    made = subprocess.run(["make", "-s", "-j2", "-C", HERE], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return BUILT


@pytest.fixture(scope="session")
def resource_manager(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated resource manager: a path for LD_PRELOAD."""
    return build(tmp_path_factory.mktemp("resource-manager"))


@pytest.fixture
def run(programs: Path) -> Run:
    """Runs ``variant/program`` with arguments, and with no other variables of these libraries."""

    def run(
        program: str, *arguments: str, **environment: str | Path
    ) -> subprocess.CompletedProcess[str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GDRPY_", "GDRCOPY_", "FAKE_RM_", "LD_"))
        }
        return subprocess.run(
            [programs / program, *arguments],
            env={**kept, **{name: str(value) for name, value in environment.items()}},
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run
