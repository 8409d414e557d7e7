"""benchmarks/containers.py on the simulated GPU: a few kills, and what the file has."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import containers


@pytest.mark.skipif(os.geteuid() != 0, reason="making namespaces needs root")
def test_clients_of_containers_leave_nothing_when_they_are_killed(tmp_path: Path) -> None:
    words = ["--rounds", "1", "--kills", "10", "--kills-cuda", "2", "--output", str(tmp_path)]
    assert containers.main(words) == 0
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text())
    assert [row["what"].partition(",")[0] for row in found["containers"][:3]] == [
        "get and close",
        "write 64 B",
        "read 64 B",
    ]
    assert [
        (one["kills"], len(one["seconds"]), one["leases_left"], one["descriptors_left"])
        for one in found["kills"]
    ] == [(10, 5, 0, 0), (2, 1, 0, 0), (5, 5, 0, 0), (1, 1, 0, 0)]


def test_a_lease_that_stays_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_PATIENCE", 0)
    with pytest.raises(SystemExit, match="the leases of round 4 stay for 0 s"):
        containers._wait(lambda: False, "the leases of round 4 stay")
