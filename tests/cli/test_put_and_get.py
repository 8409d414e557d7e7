"""``gdrpy put`` and ``gdrpy get``."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import numpy as np
import pytest

import gdrpy
from gdrpy.cli import main
from serving import CHECKOUT, DATA


class TestPutAndGet:
    @pytest.mark.parametrize("device", ["0", "cuda:0", "cpu"])
    def test_give_the_same_bytes(self, put, tmp_path, device):
        put("table", "--device", device)
        assert main(["get", "table", str(tmp_path / "copy")]) == 0
        assert (tmp_path / "copy").read_bytes() == DATA

    def test_of_more_than_one_piece(self, put, tmp_path, monkeypatch):
        monkeypatch.setattr("gdrpy.cli.broker.CHUNK", 4096)
        put("table")
        assert main(["get", "table", str(tmp_path / "copy")]) == 0
        assert (tmp_path / "copy").read_bytes() == DATA

    def test_of_a_file_that_shrinks_meanwhile_publishes_nothing(
        self, broker, file, monkeypatch, capsys
    ):
        def shrunk(name, undo):
            return io.BytesIO(DATA), len(DATA) + 1

        monkeypatch.setattr("gdrpy.cli.broker.put._open", shrunk)
        assert main(["put", "table", str(file)]) == 1
        assert "data.bin became shorter while it was read" in capsys.readouterr().err
        assert main(["stat", "table"]) == 1

    def test_of_an_array_keep_its_type_and_shape(self, broker, tmp_path):
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        with gdrpy.connect() as client:
            client.put("a", array, metadata={"note": "x"}).close()
            assert main(["get", "a", str(tmp_path / "copy")]) == 0
            for nbytes, shape in (24, (2, 3)), (20, (20,)):
                (tmp_path / "copy").write_bytes(array.tobytes()[:nbytes])
                assert main(["put", "a", str(tmp_path / "copy")]) == 0
                with client.get("a") as region:
                    assert region.numpy().shape == shape
                    assert region.numpy().tobytes() == array.tobytes()[:nbytes]

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_take_options_anywhere(self, broker, file, tmp_path, place):
        put, get = ["table", str(file)], ["table", str(tmp_path / "copy")]
        put[place:place] = ["--device", "cpu", "--seal"]
        get[place:place] = ["--nbytes", "3"]
        assert main(["put", *put]) == main(["get", *get]) == 0
        assert (tmp_path / "copy").read_bytes() == DATA[:3]

    def test_of_a_part(self, put, tmp_path):
        put("table")
        words = ["--offset", "255", "--nbytes", "3"]
        assert main(["get", "table", str(tmp_path / "part"), *words]) == 0
        assert (tmp_path / "part").read_bytes() == b"\xff\x00\x01"

    def test_of_more_than_there_is_ends_with_1(self, put, tmp_path, capsys):
        put("table")
        assert main(["get", "table", str(tmp_path / "part"), "--offset", "11K"]) == 1
        assert capsys.readouterr().err == (
            "error: get: 'table' has 10240 bytes: --offset 11264 is not before its end: give a "
            "smaller one\n"
        )
        assert not (tmp_path / "part").exists()

    def test_get_from_the_end_on_ends_with_1(self, put, tmp_path, capsys):
        put("table")
        assert main(["get", "table", str(tmp_path / "part"), "--offset", "10K"]) == 1
        assert capsys.readouterr().err == (
            "error: get: 'table' has 10240 bytes: --offset 10240 is not before its end: give a "
            "smaller one\n"
        )
        assert not (tmp_path / "part").exists()

    def test_get_beyond_the_end_says_how_many_there_are(self, put, tmp_path, capsys):
        put("table")
        words = ["--offset", "9K", "--nbytes", "2K"]
        assert main(["get", "table", str(tmp_path / "part"), *words]) == 1
        assert capsys.readouterr().err == (
            "error: get: 'table' has 10240 bytes: 1024 from --offset 9216 on, not 2048: leave "
            "--nbytes out\n"
        )

    def test_go_through_pipes(self, broker):
        def gdrpy_command(*words: str, data: bytes) -> bytes:
            return subprocess.run(
                [sys.executable, "-m", "gdrpy", *words],
                cwd=CHECKOUT,
                input=data,
                stdout=subprocess.PIPE,
                check=True,
            ).stdout

        assert gdrpy_command("put", "table", data=DATA).startswith(b"table: version 1, 10 KiB")
        assert gdrpy_command("get", "table", data=b"") == DATA

    def test_put_replaces_in_one_step_and_leaves_holders_theirs(self, put, file):
        put("table")
        with gdrpy.connect() as client, client.get("table", gpu=False) as old:
            file.write_bytes(b"new")
            said = put("table", "--seal")
            assert old.read() == DATA
            assert old.stale
        assert said == "table: version 2, 3 bytes on GPU 0, takes 2 MiB, sealed\n"

    def test_put_of_another_size_says_what_it_replaced(self, put, file, capsys):
        put("table")
        assert main(["put", "table", str(file)]) == 0
        assert capsys.readouterr().err == ""
        file.write_bytes(b"new")
        assert main(["put", "table", str(file)]) == 0
        assert capsys.readouterr().err == (
            "warning: table had 10 KiB and now has 3 bytes; processes that hold the old region "
            "keep it until they open the name again\n"
        )

    def test_put_keeps_the_mode_of_what_it_replaces_unless_told_otherwise(self, put, json_of):
        def mode(*words: str) -> object:
            put("table", *words)
            return json_of("stat", "table")[1]["mode"]

        assert mode() == "0600"
        assert mode("--mode", "0644") == "0644"
        assert mode() == "0644"
        assert mode("--mode", "0600") == "0600"

    def test_put_keeps_the_seal_of_what_it_replaces_unless_told_otherwise(self, put, json_of):
        def sealed(*words: str) -> object:
            put("table", *words)
            return json_of("stat", "table")[1]["sealed"]

        given = [[], ["--seal"], [], ["--no-seal"], []]
        assert [sealed(*words) for words in given] == [False, True, True, False, False]

    def test_put_takes_no_mode_and_no_seal_of_another_users_region(self, put, json_of, monkeypatch):
        put("table", "--mode", "0666", "--seal")
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        put("table")
        told = json_of("stat", "table")[1]
        assert (told["mode"], told["sealed"]) == ("0600", False)

    def test_put_of_nothing_ends_with_2(self, broker, tmp_path, capsys):
        (tmp_path / "empty").touch()
        assert main(["put", "table", str(tmp_path / "empty")]) == 2
        assert capsys.readouterr().err == (
            f"error: put: {tmp_path}/empty has no bytes for region 'table': a region has at least "
            f"one: give another FILE\n"
        )

    def test_put_of_empty_stdin_says_that_it_read_it(self, broker, tmp_path, capsys, monkeypatch):
        (tmp_path / "empty").touch()
        with (tmp_path / "empty").open() as empty:
            monkeypatch.setattr(sys, "stdin", empty)
            assert main(["put", "table"]) == 2
        said = "error: put: stdin has no bytes for region 'table': "
        assert capsys.readouterr().err.startswith(said)

    def test_put_of_a_missing_file_ends_with_2(self, broker, capsys):
        assert main(["put", "table", "/nonexistent"]) == 2
        captured = capsys.readouterr()
        assert captured.err == "error: cannot read /nonexistent: No such file or directory\n"

    def test_put_suggests_the_other_order_of_name_and_file(self, broker, file, capsys):
        assert main(["put", str(file), "/nonexistent"]) == 2
        assert capsys.readouterr().err == (
            f"error: cannot read /nonexistent: No such file or directory: did you mean 'gdrpy put "
            f"/nonexistent {file}'?\n"
        )

    def test_get_refuses_a_terminal(self, broker, capsys, monkeypatch):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert main(["get", "table"]) == 2
        assert "raw bytes are not for a terminal" in capsys.readouterr().err

    def test_put_refuses_a_terminal(self, broker, capsys, monkeypatch):
        controller, terminal = os.openpty()
        with os.fdopen(terminal) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            assert main(["put", "table"]) == 2
        os.close(controller)
        assert "stdin instead of a terminal" in capsys.readouterr().err

    def test_get_refuses_json_beside_bytes(self, broker, json_of):
        status, said = json_of("get", "table")
        assert status == 2
        assert "add a FILE" in said["error"]["message"]

    def test_get_of_a_full_disk_ends_with_1(self, put, capsys):
        put("table")
        assert main(["get", "table", "/dev/full"]) == 1
        assert "cannot write /dev/full: No space left on device" in capsys.readouterr().err

    def test_get_ends_quietly_when_its_reader_does(self, put, file):
        file.write_bytes(b"x" * (1 << 20))
        put("table")
        command = [sys.executable, "-m", "gdrpy", "get", "table"]
        with subprocess.Popen(
            command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.read(1) == b"x"
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 141
