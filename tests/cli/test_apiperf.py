"""``gdrpy apiperf``: its figures and its checks."""

from __future__ import annotations

import pytest

import gdrpy
from gdrpy import sim
from gdrpy.cli import main
from gdrpy.cli.measure.apiperf import PIN_CALLS, REGION_CALLS, Rounds

QUICK = ["--count", "3"]
CALLS = [*REGION_CALLS, *PIN_CALLS]


class TestApiperf:
    def test_prints_a_table_with_a_row_for_each_call(self, gdrpy_command):
        done = gdrpy_command("apiperf", *QUICK)
        assert (done.returncode, done.stderr) == (0, "")
        assert "us a call, 1 MiB, 3 rounds" in done.stdout
        rows = [line for line in done.stdout.splitlines() if line.startswith("│")]
        assert [row.split("│")[1].strip() for row in rows] == CALLS

    def test_json_holds_the_times_of_each_and_the_first_one_apart(self, json_of):
        status, result = json_of("apiperf", "--size", "100", "--count", "7")
        assert status == 0
        assert result["pins_not_measured"] is None
        assert result["engine_not_measured"].startswith("Region.write: ")
        assert [one["call"] for one in result["results"]] == CALLS
        for one in result["results"]:
            assert one["first_nanoseconds"] > 0
            assert one["nanoseconds"]["count"] == 7
            assert sum(one["histogram"]["counts"]) == 7
            assert len(one["histogram"]["edges"]) == len(one["histogram"]["counts"]) + 1

    def test_measures_the_rest_where_no_pin_can_be_made(self, json_of, monkeypatch, capsys):
        def refuse(*_, **__):
            raise gdrpy.BackendUnavailable("no backend can map this pointer")

        monkeypatch.setattr(gdrpy.Gdr, "pin", refuse)
        status, result = json_of("apiperf", *QUICK)
        assert status == 0
        assert result["pins_not_measured"] == "no backend can map this pointer"
        assert [one["call"] for one in result["results"]] == [*REGION_CALLS]

        assert main(["apiperf", *QUICK]) == 0
        said = "\npins: not measured: no backend can map this pointer\n"
        assert said in capsys.readouterr().out

    def test_fails_when_another_view_shows_other_bytes(self, monkeypatch, capsys):
        monkeypatch.setattr(gdrpy.Region, "read", lambda self, nbytes, offset=0: bytes(nbytes))
        assert main(["apiperf", *QUICK]) == 1
        said = "error: through a region after import: first differing byte at offset "
        assert capsys.readouterr().err.startswith(said)


class TestRounds:
    def test_hold_two_regions_and_an_allocation_at_most(self):
        rounds = Rounds(4096, 0, None)
        before = sim.call_count("cuMemCreate"), sim.call_count("cuMemAlloc")
        rounds.region_round()
        rounds.pin_round()
        assert sim.call_count("cuMemCreate") - before[0] == 1
        assert sim.call_count("cuMemAlloc") - before[1] == 1

    @pytest.mark.parametrize(
        ("call", "kind"),
        [("cuMemMap:2", "region_round"), ("cuMemcpyDtoH:1", "pin_round")],
    )
    def test_that_fail_leave_nothing(self, backend, nothing_leaks, call, kind):
        rounds = Rounds(4096, 0, None)
        with sim.fault(f"{call}:719"), pytest.raises(gdrpy.CudaError, match=call[:-2]):
            getattr(rounds, kind)()
