"""``gdrpy copylat``: its figures and its checks."""

from __future__ import annotations

import re
from itertools import pairwise, product

import numpy as np
import pytest

import gdrpy
from gdrpy.cli import hostmemory, main
from gdrpy.cli.measure import copylat
from gdrpy.cli.measure.copylat import WAYS
from gdrpy.memory import engine

QUICK = ["--seconds", "0.001"]
CACHES = ("warm", "cold")
#: The ways of a simulated GPU without the simulated resource manager.
WITHOUT_ENGINE = list(WAYS)[:4]


class TestCopylat:
    def test_prints_tables_of_writes_and_reads_for_warm_and_for_cold_memory(self, gdrpy_command):
        done = gdrpy_command("copylat", "--sizes", "1,64,4K", *QUICK)
        assert (done.returncode, done.stderr) == (0, "")
        titles = re.findall("us a (.*), host memory (.*?) *\n", done.stdout)
        assert titles == [(name, cache) for cache in CACHES for name in ("write", "read")]
        rows = [line for line in done.stdout.splitlines() if line.startswith("│")]
        assert [row.split("│")[1].strip() for row in rows] == 4 * ["1 byte", "64 bytes", "4 KiB"]
        assert len(re.findall(r"┃ +\.write ┃ +HtoD ┃\n", done.stdout)) == 2
        assert len(re.findall(r"┃ +\.readinto ┃ +DtoH ┃\n", done.stdout)) == 2
        assert f"\nengine: not measured: {engine.status(0).reason}\n" in done.stdout

    def test_measures_4_bytes_to_64_kib_unless_told_otherwise(self):
        assert (copylat.DEFAULT_SIZES[0], copylat.DEFAULT_SIZES[-1]) == (4, 64 << 10)
        assert all(b == 2 * a for a, b in pairwise(copylat.DEFAULT_SIZES))

    def test_json_holds_every_way_and_how_it_was_timed(self, json_of):
        status, result = json_of("copylat", "--sizes", "4,8K", *QUICK)
        assert status == 0
        assert result["empty_sample_nanoseconds"] > 0
        assert result["evictor_bytes"] >= 256 << 20
        found = [(one["cache"], one["size"], one["way"]) for one in result["results"]]
        assert found == list(product(CACHES, (4, 8192), WITHOUT_ENGINE))
        assert result["engine_not_measured"] == engine.status(0).reason
        for one in result["results"]:
            assert one["verified"] is True
            assert one["difference"] is None
            assert 1 <= one["calls_a_sample"] <= 64
            times = one["nanoseconds"]
            assert times["count"] >= 20
            assert times["minimum"] <= times["median"] <= times["p99"] <= times["maximum"]

    def test_times_single_calls_where_the_memory_is_cold(self, json_of):
        _, result = json_of("copylat", "--sizes", "4", *QUICK)
        calls = {one["calls_a_sample"] for one in result["results"] if one["cache"] == "cold"}
        assert calls == {1}

    @pytest.mark.parametrize(
        ("method", "nothing"), [("write", None), ("readinto", 4096)], ids=["write", "readinto"]
    )
    def test_fails_when_the_bytes_do_not_arrive(
        self, json_of, monkeypatch, capsys, method, nothing
    ):
        monkeypatch.setattr(gdrpy.Mapping, method, lambda *_: nothing)
        status, result = json_of("copylat", "--sizes", "4K", *QUICK)
        assert status == 1
        wrong = [one for one in result["results"] if not one["verified"]]
        assert [(one["way"], one["cache"]) for one in wrong] == [
            (f"Mapping.{method}", cache) for cache in CACHES
        ]
        assert [one["difference"]["differing"] for one in wrong] == [4096, 4096]

        assert main(["copylat", "--sizes", "4K", *QUICK]) == 1
        captured = capsys.readouterr()
        assert captured.out.count("WRONG DATA") == 2
        first, second = captured.err.splitlines()
        said = f"error: Mapping.{method} of 4 KiB, {{}}: first differing byte at offset 0"
        assert first.startswith(said.format("warm"))
        assert second.startswith(said.format("cold"))

    def test_finds_one_cold_piece_that_was_not_filled(self, json_of, monkeypatch):
        fill, seen = gdrpy.Mapping.readinto, []

        def forgetful(self, buffer, offset=0):
            seen.append(np.frombuffer(buffer, np.uint8).ctypes.data)
            if len({*seen}) == 2 and seen[-1] not in seen[:-1]:
                return len(buffer)  # once, of the first piece but the one that is warm
            return fill(self, buffer, offset)

        monkeypatch.setattr(gdrpy.Mapping, "readinto", forgetful)
        status, result = json_of("copylat", "--sizes", "64", *QUICK)
        assert status == 1
        wrong = [one for one in result["results"] if not one["verified"]]
        assert [(one["way"], one["cache"]) for one in wrong] == [("Mapping.readinto", "cold")]

    def test_refuses_what_the_host_has_no_memory_for(self, monkeypatch, capsys):
        monkeypatch.setattr(hostmemory, "_available", lambda: 1 << 20)
        assert main(["copylat"]) == 2
        assert capsys.readouterr().err.startswith("error: this needs about ")
