"""The benchmark of the copy engine on a real GPU: every byte right, nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


def test_kills_and_copies_leave_no_wrong_byte_and_take_no_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, BENCHMARKS / "run.py", "--only", "copyengine", "--quick"),
            *("--kills", "20", "--output", tmp_path),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.json")
    result = json.loads(path.read_text())
    assert {one["verified"] for one in result["measurements"]} == {True}
    assert [one["wrong"] for one in result["sweeps"]] == [[], []]
    figures = {one["id"].removeprefix("copyengine/"): one["value"] for one in result["figures"]}
    assert figures["fresh CPU-only process/GPU memory"] <= 4
    assert figures["ten processes at once/wrong copies"] == 0
    assert figures["killed/processes"] == 20
    assert figures["killed/with wrong bytes"] == 0
    assert figures["killed/longest time until GPU memory is back"] <= 1
    assert figures["killed/GPU memory less in the end"] <= 0
    assert figures["killed/descriptors more in the end"] == 0
