"""``gdrpy pplat``: its figures and its checks."""

from __future__ import annotations

import functools
import os

from gdrpy.cli import main
from gdrpy.cli.measure import pingpong, pplat
from gdrpy.cli.measure.pingpong import OUT_OF_TIME, Ending

QUICK = ["--count", "20"]
BY_THREAD = "a Python thread, since the simulated GPU has no kernels"


class TestPplat:
    def test_prints_a_table_with_a_row_for_each_way_and_who_answered(self, gdrpy_command):
        done = gdrpy_command("pplat", *QUICK)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"\nanswered by {BY_THREAD}; reading the clock costs " in done.stdout
        assert "us a round trip, 20 rounds" in done.stdout
        rows = [line for line in done.stdout.splitlines() if line.startswith("│")]
        assert [row.split("│")[1].strip() for row in rows] == [
            "GPU -> pinned",
            "pinned -> pinned",
            "GPU -> GPU",
            "pinned -> GPU",
        ]

    def test_json_holds_the_distribution_of_each_way_and_who_answered(self, json_of):
        status, result = json_of("pplat", "--count", "30")
        assert status == 0
        assert result["answered_by"] == BY_THREAD
        assert result["clock_nanoseconds"] > 0
        assert [(one["flag"], one["reply"]) for one in result["results"]] == [*pplat.WAYS]
        for one in result["results"]:
            assert one["verified"] is True
            assert one["nanoseconds"]["count"] == sum(one["histogram"]["counts"]) == 30

    def test_plays_on_the_cpu_that_is_named_and_leaves_it_afterwards(self, json_of, monkeypatch):
        before = os.sched_getaffinity(0)
        seen = []

        def playing(*args):
            seen.append(os.sched_getaffinity(0))
            return pingpong.play(*args)

        monkeypatch.setattr(pplat, "play", playing)
        status, result = json_of("pplat", *QUICK, "--cpu", str(max(before)))
        assert (status, result["cpu"], os.sched_getaffinity(0)) == (0, max(before), before)
        assert seen == [{max(before)}] * len(pplat.WAYS)

    def test_plays_many_rounds_in_several_runs(self, json_of, monkeypatch):
        monkeypatch.setattr(pplat, "_ROUNDS_A_RUN", 8)
        status, result = json_of("pplat", *QUICK)
        assert status == 0
        assert {one["nanoseconds"]["count"] for one in result["results"]} == {20}

    def test_fails_when_an_answer_is_wrong(self, capsys, monkeypatch):
        def answer_wrongly(self):
            ping, reply = self._flags
            ping.wait(1)
            reply.set(2)
            self.ending = Ending(OUT_OF_TIME, 0)

        monkeypatch.setattr(pingpong._Thread, "_answer", answer_wrongly)
        assert main(["pplat", *QUICK]) == 1
        assert capsys.readouterr().err == "error: round 1 was answered by 2\n"

    def test_fails_when_no_answer_comes(self, json_of, monkeypatch):
        def give_up(self):
            self.ending = Ending(OUT_OF_TIME, 0)

        monkeypatch.setattr(pingpong._Thread, "_answer", give_up)
        monkeypatch.setattr(pplat, "play", functools.partial(pingpong.play, timeout=0.01))
        status, result = json_of("pplat", *QUICK)
        assert status == 1
        assert result["error"]["message"] == (
            f"{BY_THREAD}: out of time after 0 of 120 rounds: "
            f"Flag.wait: the word at offset 128 is 0, and not >= 1 in time"
        )
