"""benchmarks/channelkills.py on the simulated GPU: a few kills, and what the file has."""

from __future__ import annotations

import json
from pathlib import Path

import channelkills


def test_kills_at_both_ends_leave_nothing_torn_lost_or_held(tmp_path: Path) -> None:
    assert channelkills.main(["--kills", "20", "--output", str(tmp_path), "--commit", "x"]) == 0
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text())
    assert [(one["killed"], one["kills"]) for one in found["kills"]] == [
        ("producers", 18),
        ("kernel's processes", 2),
    ]
    for one in found["kills"]:
        names = ("torn", "lost", "doubled", "stuck", "descriptors_left", "leases_left")
        assert [one[name] for name in names] == [0] * 6
        assert one["records"] > 0
    assert found["note"].startswith("measured on a simulated GPU")
