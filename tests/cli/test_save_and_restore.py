"""``gdrpy save``, ``gdrpy restore``, and ``gdrpy serve --restore``."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

import gdrpy
from gdrpy.cli import main
from serving import DATA


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Where a snapshot goes."""
    return str(tmp_path / "snapshot")


class TestSave:
    def test_and_restore_bring_regions_back(self, put, json_of, folder):
        put("table")
        put("other")
        status, said = json_of("save", folder, "table")
        assert (status, said["regions"], said["nbytes"]) == (0, ["table"], len(DATA))
        json_of("rm", "table", "other")
        status, said = json_of("restore", folder)
        assert (status, said["regions"], said["nbytes"]) == (0, ["table"], len(DATA))
        with gdrpy.connect() as client, client.get("table", gpu=False) as region:
            assert region.read() == DATA

    def test_says_what_it_did(self, put, capsys, folder):
        put("table")
        capsys.readouterr()
        assert main(["save", folder]) == main(["restore", folder]) == 0
        saved, restored = capsys.readouterr().out.splitlines()
        assert saved.startswith("saved 1 region of 10.0 KiB in ")
        assert saved.endswith(f"/s) in {folder}")
        assert restored.startswith("restored 1 region of 10.0 KiB in ")
        assert main(["restore", folder, "--missing"]) == 0
        assert capsys.readouterr().out == f"restored 0 regions from {folder}\n"

    def test_into_a_folder_that_exists_or_cannot_be_made_fails(self, put, capsys, tmp_path):
        put("table")
        capsys.readouterr()
        assert main(["save", str(tmp_path)]) == 1
        why = f"error: save: {tmp_path} exists: choose another folder\n"
        assert capsys.readouterr().err == why
        nowhere = tmp_path / "nowhere/snapshot"
        assert main(["save", str(nowhere)]) == 1
        why = (
            f"error: save: cannot make {nowhere}: No such file or directory: make the folder above "
            f"it first\n"
        )
        assert capsys.readouterr().err == why

    def test_of_a_missing_region_names_a_near_one(self, put, capsys, folder):
        put("table")
        capsys.readouterr()
        assert main(["save", folder, "tabel"]) == 1
        why = "error: save: there is no region of the name 'tabel': did you mean 'table'?\n"
        assert capsys.readouterr().err == why


class TestRestore:
    def test_to_another_device(self, put, json_of, folder):
        put("table")
        assert json_of("save", folder)[0] == 0
        assert json_of("restore", folder, "--device", "cpu")[0] == 0
        assert json_of("stat", "table")[1]["device"] == "cpu"

    def test_of_no_snapshot_or_a_changed_one_fails(self, put, capsys, folder, tmp_path):
        put("table")
        assert main(["save", folder]) == 0
        capsys.readouterr()
        assert main(["restore", str(tmp_path)]) == 1
        assert "holds no snapshot: it has no snapshot.json" in capsys.readouterr().err
        file = Path(folder, "00000.bin")
        file.write_bytes(b"x" + file.read_bytes()[1:])
        assert main(["restore", folder]) == 1
        why = f"restore: {file} has changed since 'table' was saved: copy the snapshot again"
        assert capsys.readouterr().err == f"error: {why}\n"

    def test_that_cannot_read_names_the_file(self, put, capsys, folder, monkeypatch):
        def broken(*_):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        put("table")
        assert main(["save", folder]) == 0
        capsys.readouterr()
        monkeypatch.setattr(os, "preadv", broken)
        assert main(["restore", folder]) == 1
        why = f"error: restore: cannot read {folder}/00000.bin: Input/output error\n"
        assert capsys.readouterr().err == why

    def test_without_any_thread_names_the_folder(self, put, capsys, folder, monkeypatch):
        def fail(_):
            raise RuntimeError("can't start new thread")

        put("table")
        assert main(["save", folder]) == 0
        capsys.readouterr()
        monkeypatch.setattr(threading.Thread, "start", fail)
        assert main(["restore", folder]) == 1
        why = "no thread can be started: end some processes, or raise the limit (ulimit -u)"
        assert capsys.readouterr().err == f"error: restore: {folder}: {why}\n"


class TestServe:
    def test_restores_what_is_missing_before_it_says_that_it_serves(
        self, put, start_serving, folder
    ):
        put("table")
        assert main(["save", folder]) == 0
        served = start_serving("--restore", folder)
        for version in (1, 2):
            with gdrpy.connect(served.socket) as client:
                assert [info.version for info in client.list()] == [version]
                client.put("table", b"newer", "cpu").close()
            served.restart()
        said = [line.partition(" in ")[0][9:] for line in served.log.splitlines() if "INFO" in line]
        assert said[0] == "INFO restored 1 region of 10.0 KiB"
        assert f"INFO restored 0 regions from {folder}" in served.log

    def test_that_cannot_restore_says_why_and_serves_on(self, put, start_serving, folder):
        put("table")
        assert main(["save", folder]) == 0
        Path(folder, "00000.bin").unlink()
        served = start_serving("--restore", folder)
        with gdrpy.connect(served.socket) as client:
            assert client.list() == []
        assert "WARNING --restore: cannot read " in served.log

    def test_that_has_no_room_names_the_region_and_the_limit(self, put, start_serving, folder):
        put("table")
        assert main(["save", folder]) == 0
        served = start_serving("--restore", folder, "--max-bytes", "1M")
        assert (
            "WARNING --restore: region 'table': 2 MiB on GPU 0: regions may take 1 MiB there in "
            "all: restore fewer regions, or start the broker with larger limits, as of "
            "--max-bytes\n"
        ) in served.log

    def test_without_a_snapshot_says_so_and_serves(self, start_serving, tmp_path):
        served = start_serving("--restore", str(tmp_path))
        assert f"WARNING --restore: {tmp_path} holds no snapshot" in served.log
