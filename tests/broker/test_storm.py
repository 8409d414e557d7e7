"""A bounded storm of kills; ``tests/broker/storm.py`` is the program for longer ones."""

from __future__ import annotations

import storm

KILLS = 40


class TestBroker:
    def test_keeps_what_was_acknowledged_whoever_is_killed(self) -> None:
        report = storm.run(KILLS, seed=7)
        assert report["kills"] == KILLS
        assert set(report["killed"]) == {"broker", "client", "keeper"}
        assert report["steps_written_down"] > KILLS
