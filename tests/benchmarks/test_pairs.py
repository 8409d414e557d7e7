"""The comparison of two checkouts."""

from __future__ import annotations

import json
from pathlib import Path

import pairs

ROOT = Path(__file__).resolve().parents[2]
#: The worker, with a crowd that asks for a moment.
HASTY_WORKER = f"""
import sys

sys.path.insert(0, {str(ROOT / "benchmarks")!r})
import pairs_worker

pairs_worker._SECONDS = 0.02
pairs_worker.main()
"""


def test_a_checkout_can_be_compared_with_itself(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pairs, "_EACH", 1)
    monkeypatch.setattr(pairs, "_FEWEST", 1)
    monkeypatch.setattr(pairs, "_TRIED", (1,))
    monkeypatch.setattr(pairs, "_WORKER", tmp_path / "hasty_worker.py")
    pairs._WORKER.write_text(HASTY_WORKER)
    results = tmp_path / "results"
    options = ["--old-commit", "abc", "--rounds", "2", "--output", str(results)]
    assert pairs.main([str(ROOT), str(ROOT), *options]) == 0
    (path,) = results.iterdir()
    result = json.loads(path.read_text())
    assert result["header"]["old_commit"] == "abc"
    calls = [one["call"] for one in result["pairs"]]
    assert calls[:2] == ["store", "load"]
    assert calls[-2:] == ["get_many of 1,000", "get by 16 clients"]
    for one in result["pairs"]:
        for side in "old_us", "new_us":
            assert [len(samples) for samples in one[side]] == [2]
    *rows, name = capsys.readouterr().out.splitlines()
    assert len(rows) == 1 + len(calls)
    assert name == str(path)


def test_a_ratio_is_the_new_processes_time_over_the_old_ones():
    old, new = [Clock(2), Clock(4)], [Clock(3), Clock(9)]
    assert pairs.pair("call", old, new, 5)["ratio"] == 2


class Clock:
    """A process whose calls take so many ns each."""

    def __init__(self, taken: int) -> None:
        self._taken = taken

    def time(self, _call: str, count: int) -> int:
        return self._taken * count
