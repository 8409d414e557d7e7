"""``gdrpy stat`` of regions; that of checkpoints is tested with ``gdrpy load``."""

from __future__ import annotations

import os

import gdrpy
from gdrpy.cli import main
from serving import GPU


class TestStat:
    def test_tells_who_holds_it(self, put, json_of):
        put("table")
        with gdrpy.connect() as client, client.get("table", gpu=False, readonly=True):
            status, found = json_of("stat", "table")
        assert status == 0
        assert [found[key] for key in ("device", "uuid", "gpu")] == GPU
        assert found["holders"] == [
            {
                "pid": os.getpid(),
                "uid": os.getuid(),
                "writable": False,
                "gpu": False,
                "count": 1,
                "exporter": False,
            }
        ]
        assert (found["readers"], found["writers"]) == (1, 0)

    def test_of_host_memory_tells_of_no_gpu_view(self, broker, json_of):
        with gdrpy.connect() as client, client.put("table", b"x", "cpu"), client.get("table"):
            _, found = json_of("stat", "table")
        assert [holder["gpu"] for holder in found["holders"]] == [False]

    def test_tells_which_holder_it_is_bound_to(self, broker, json_of, capsys):
        with (
            gdrpy.connect() as exporter,
            gdrpy.connect() as client,
            exporter.allocate("kv", 4096, "cpu", grace=1),
            client.get("kv", readonly=True),
        ):
            _, found = json_of("stat", "kv")
            assert main(["stat", "kv"]) == 0
        printed = capsys.readouterr().out.translate(dict.fromkeys(map(ord, "┃│|"), " "))
        rows = [line.split() for line in printed.splitlines()]
        titles = next(number for number, row in enumerate(rows) if row[:1] == ["process"])
        told = [row[-1] for row in rows[titles:] if row[:1] == [str(os.getpid())]]
        assert (rows[titles][-1], told) == ("exporter", ["yes", "no"])
        assert [one["exporter"] for one in found["holders"]] == [True, False]

    def test_tells_who_has_it_asleep(self, broker, json_of, capsys):
        with gdrpy.connect() as client:
            older = client.put("table", b"x")
            newer = client.put("table", b"y")
            gdrpy.detach_many([older, newer])
            client.status()  # the broker has read what was sent before
            assert main(["stat", "table"]) == 0
            printed = capsys.readouterr().out
            status, found = json_of("stat", "table")
            _, listed = json_of("ls")
            older.close()
            newer.close()
        assert "held by   0 readers, 0 writers, 1 asleep\n" in printed
        assert " in older version 1 " in printed
        assert " in version 2 " in printed
        who = {"pid": os.getpid(), "uid": os.getuid()}
        assert (status, found["asleep"], found["sleepers"]) == (
            0,
            1,
            [who | {"version": 1, "older": True}, who | {"version": 2, "older": False}],
        )
        assert [region["asleep"] for region in listed["regions"]] == [1]

    def test_prints_metadata_that_json_lacks(self, broker, capsys):
        with gdrpy.connect() as client:
            client.allocate("x", 1, "cpu", metadata={"key": b"bytes"})
        assert main(["stat", "x"]) == 0
        assert 'metadata  {"key": "b\'bytes\'"}' in capsys.readouterr().out

    def test_of_a_missing_region_ends_with_1(self, broker, capsys):
        assert main(["stat", "nothing"]) == 1
        assert capsys.readouterr().err == (
            "error: stat: there is no region of the name 'nothing': 'gdrpy ls' lists them\n"
        )
