"""The benchmarks' modules, and one quick run of them on the simulated GPU for all tests."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preloading import *  # noqa: F403

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"

# They are scripts beside each other, not a package.
sys.path.insert(0, str(BENCHMARKS))


@dataclass(frozen=True)
class QuickRun:
    """What `run.py --quick` left and said."""

    path: Path
    result: dict[str, Any]
    stdout: str


@pytest.fixture(scope="session")
def quick_run(tmp_path_factory: pytest.TempPathFactory, resource_manager_library: Path) -> QuickRun:
    """A run of every module, with a simulated resource manager for the GPU's copy engine."""
    folder = tmp_path_factory.mktemp("results")
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "run.py", "--quick", "--output", folder],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "GDRPY_BACKEND": "nvrm", "LD_PRELOAD": str(resource_manager_library)},
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.iterdir()
    return QuickRun(path, json.loads(path.read_text()), done.stdout)


@pytest.fixture
def result(quick_run: QuickRun) -> dict[str, Any]:
    """The result of a quick run on the simulated GPU, the test's own to change."""
    return copy.deepcopy(quick_run.result)


def held(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The goals beside a result's figures, to which a quick run is not held."""
    import goals
    from harness import Session

    kept = {
        name: [SimpleNamespace(**one) for one in result[name]]
        for name in ("measurements", "figures")
    }
    found = goals.check(Session(1, True, print, **kept), result["header"]["simulated"])
    return json.loads(json.dumps(found))


@pytest.fixture
def held_to_goals(result: dict[str, Any]) -> dict[str, Any]:
    """The same with the goals that a full run is held to."""
    return result | {"goals": held(result)}


@pytest.fixture
def publishable(result: dict[str, Any]) -> dict[str, Any]:
    """The same as if a real GPU had been measured in full."""
    result["goals"] = held(result)
    result["header"] |= {"simulated": False, "gpu": "NVIDIA Test", "pcie_link": "32.0 GT/s x16"}
    result |= {"quick": False, "note": None}
    return result
