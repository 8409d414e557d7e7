"""``gdrpy copybw``: its figures and its checks."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

import gdrpy
from gdrpy.cli import main
from gdrpy.cli.measure import copybw
from gdrpy.cli.measure.copybw import WAYS, rates
from gdrpy.cli.measure.report import Copies
from gdrpy.cli.measure.timing import Samples
from gdrpy.memory import engine

QUICK = ["--seconds", "0.001"]
#: The ways of a simulated GPU without the simulated resource manager.
WITHOUT_ENGINE = list(WAYS[:4])


class TestCopybw:
    def test_prints_a_table_with_a_row_for_each_size(self, gdrpy_command):
        done = gdrpy_command("copybw", "--sizes", "1,4K,1M", *QUICK)
        assert (done.returncode, done.stderr) == (0, "")
        assert "simulated GPU, device 0, backend sim" in done.stdout
        assert "\nsimulated GPU: these are speeds of host memory\n" in done.stdout
        rows = [line for line in done.stdout.splitlines() if line.startswith("│")]
        assert [row.split("│")[1].strip() for row in rows] == 2 * ["1 byte", "4 KiB", "1 MiB"]
        assert len(re.findall(r"┃ +mapping ┃ +DMA ┃\n", done.stdout)) == 2
        assert f"\nengine: not measured: {engine.status(0).reason}\n" in done.stdout

    def test_goes_from_4_kib_to_64_mib_unless_told_otherwise(self):
        assert copybw.DEFAULT_SIZES[0] == 4 << 10
        assert copybw.DEFAULT_SIZES[-1] == 64 << 20
        assert all(b == 4 * a for a, b in pairwise(copybw.DEFAULT_SIZES))

    def test_json_holds_every_sample_and_what_it_ran_on(self, json_of):
        status, result = json_of("copybw", "--sizes", "64K", *QUICK)
        assert status == 0
        assert result["header"]["command"] == "gdrpy copybw --sizes 64K --seconds 0.001 --json"
        assert result["header"]["simulated"] is True
        assert [one["way"] for one in result["results"]] == WITHOUT_ENGINE
        assert result["engine_not_measured"] == engine.status(0).reason
        for one in result["results"]:
            assert one["size"] == 65536
            assert one["verified"] is True
            assert len(one["seconds_a_copy"]) >= 3
            rate = one["gigabytes_per_second"]
            assert rate["lowest"] <= rate["median"] <= rate["highest"]
            assert rate["highest"] == 65536 / min(one["seconds_a_copy"]) / 1e9

    @pytest.mark.parametrize(("name", "way"), [("write", "DMA write"), ("readinto", "DMA read")])
    def test_fails_when_the_bytes_do_not_arrive(self, json_of, monkeypatch, capsys, name, way):
        monkeypatch.setattr(gdrpy.Region, name, lambda *_: None)
        status, result = json_of("copybw", "--sizes", "4K", *QUICK)
        assert status == 1
        wrong = [one for one in result["results"] if one["verified"] is False]
        assert [one["way"] for one in wrong] == [way]
        assert wrong[0]["difference"]["differing"] == 4096

        assert main(["copybw", "--sizes", "4K", *QUICK]) == 1
        captured = capsys.readouterr()
        assert "WRONG DATA" in captured.out
        assert f"error: {way} of 4 KiB: first differing byte at offset 0" in captured.err


def test_rates_count_1e9_bytes_a_second():
    result = Copies("DMA read", 2000, Samples([1e3, 2e3, 4e3]), None)
    assert rates(result) == pytest.approx({"median": 1.0, "lowest": 0.5, "highest": 2.0})
