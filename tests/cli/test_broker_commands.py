"""The commands that ask a broker, against one that runs."""

from __future__ import annotations

import errno
import getpass
import hashlib
import io
import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import gdrpy
from gdrpy.broker.client.broker import Broker
from gdrpy.broker.client.watch import Watch
from gdrpy.cli import keys, main, output
from serving import CHECKOUT, BrokerProcess

DATA = bytes(range(256)) * 40
#: What JSON calls the first simulated GPU: ordinal, UUID and product name.
GPU = [0, "GPU-67647270-7920-7369-6d75-6c6174656400", "gdrpy simulated GPU"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def put(
    broker: BrokerProcess, file: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Puts the file into a region of a name, with more words; what the command said."""

    def run(name: str, *words: str) -> str:
        assert main(["put", name, str(file), *words]) == 0
        return capsys.readouterr().out

    return run


class TestWithoutBroker:
    @pytest.mark.parametrize(
        "words",
        [
            ["ls"],
            ["stat", "x"],
            ["alloc", "x", "1M"],
            ["put", "x", "/dev/null"],
            ["get", "x", "/dev/null"],
            ["rm", "x"],
            ["seal", "x"],
            ["load", "/dev/null", "x"],
            ["watch"],
            ["top"],
        ],
    )
    def test_every_command_ends_with_2_and_the_remedy(self, capsys, tmp_path, words):
        if words[0] == "put":
            words[2] = __file__  # an empty one is refused before
        assert main([*words, "--socket", str(tmp_path / "none.sock")]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"error: connect: no broker answers at {tmp_path}")
        assert captured.err.endswith(
            "start one by `gdrpy serve`, or say by --socket or GDRPY_SOCKET where it is\n"
        )


class TestRefusedCommand:
    def test_says_why_in_words_alone(self, broker, capsys, monkeypatch):
        def refuse(*_):
            raise gdrpy.PermissionDenied(errno.EACCES, "user 7 may not")

        monkeypatch.setattr(gdrpy.Broker, "stat", refuse)
        monkeypatch.setattr(gdrpy.Broker, "delete", refuse)
        assert main(["stat", "table"]) == main(["rm", "table"]) == 1
        assert capsys.readouterr().err == "error: user 7 may not\n" * 2

    @pytest.mark.parametrize("command", ["get", "rm", "seal", "stat"])
    def test_is_the_one_that_was_typed(self, broker, capsys, command):
        words = ["/dev/null"] * (command == "get")
        assert main([command, "nothing", *words]) == 1
        said = f"error: {command}: there is no region of the name 'nothing'\n"
        assert capsys.readouterr().err == said

    def test_that_makes_a_region_is_the_one_that_was_typed(self, broker, file, capsys):
        for words in (["put", "x", str(file)], ["alloc", "x", "1M"]):
            assert main([*words, "--device", "7"]) == 1
            assert capsys.readouterr().err == (
                f"error: {words[0]}: this machine has no GPU 7: name another one, or take host "
                f"memory by --device cpu\n"
            )

    @pytest.mark.parametrize("command", ["get", "rm", "seal", "stat"])
    def test_suggests_a_name_that_the_user_may_read(self, put, capsys, command):
        put("weights")
        assert main([command, "wieghts", *["/dev/null"] * (command == "get")]) == 1
        said = "there is no region of the name 'wieghts': did you mean 'weights'?"
        assert capsys.readouterr().err == f"error: {command}: {said}\n"

    def test_to_connect_says_why_in_words_alone(self, capsys, monkeypatch):
        def refuse(*_):
            raise gdrpy.PermissionDenied(errno.EACCES, "connecting to it: not for you")

        monkeypatch.setattr(gdrpy, "connect", refuse)
        assert main(["ls"]) == 2
        assert capsys.readouterr().err == "error: connecting to it: not for you\n"


class TestImpossibleName:
    @pytest.mark.parametrize("name", ["", "\udcff", "ü" * 128])
    @pytest.mark.parametrize(
        "words",
        [["stat"], ["alloc", "1M"], ["put", "/dev/null"], ["get", "/dev/null"], ["rm"], ["seal"]],
    )
    def test_is_wrong_usage(self, capsys, words, name):
        with pytest.raises(SystemExit) as caught:
            main([words[0], name, *words[1:]])
        assert caught.value.code == 2
        assert "argument NAME: the command line: name must " in capsys.readouterr().err

    @pytest.mark.parametrize("command", ["ls", "watch"])
    def test_is_no_prefix_either(self, capsys, command):
        with pytest.raises(SystemExit) as caught:
            main([command, "\udcff"])
        assert caught.value.code == 2
        assert "argument PREFIX: the command line: prefix must be " in capsys.readouterr().err


#: A table of four regions, by the columns that there are.
TABLES = {
    140: """
┏━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━┳━━━━━━┳━━━━━━━━━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━┓
┃ name                        ┃ size    ┃ held by  ┃ on   ┃ rights           ┃ version ┃ owner ┃
┡━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━╇━━━━━━╇━━━━━━━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━┩
│ a                           │ 4.9 KiB │ 2 r, 1 w │ host │ rw-r----- sealed │ 3       │ root  │
│ models/weights/layer-17     │ 4.9 KiB │ 2 r, 1 w │ host │ rw-r----- sealed │ 3       │ root  │
│ 重み/重み/重み/重み/重み/17 │ 4.9 KiB │ 2 r, 1 w │ host │ rw-r----- sealed │ 3       │ root  │
│ [bold]                      │ 4.9 KiB │ 2 r, 1 w │ host │ rw-r----- sealed │ 3       │ root  │
└─────────────────────────────┴─────────┴──────────┴──────┴──────────────────┴─────────┴───────┘""",
    80: """
┏━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━┳━━━━━━┳━━━━━━━━━━━━━━━━━━┓
┃ name                        ┃ size    ┃ held by  ┃ on   ┃ rights           ┃
┡━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━╇━━━━━━╇━━━━━━━━━━━━━━━━━━┩
│ a                           │ 4.9 KiB │ 2 r, 1 w │ host │ rw-r----- sealed │
│ models/weights/layer-17     │ 4.9 KiB │ 2 r, 1 w │ host │ rw-r----- sealed │
│ 重み/重み/重み/重み/重み/17 │ 4.9 KiB │ 2 r, 1 w │ host │ rw-r----- sealed │
│ [bold]                      │ 4.9 KiB │ 2 r, 1 w │ host │ rw-r----- sealed │
└─────────────────────────────┴─────────┴──────────┴──────┴──────────────────┘""",
    60: """
┏━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━┳━━━━━━┓
┃ name                        ┃ size    ┃ held by  ┃ on   ┃
┡━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━╇━━━━━━┩
│ a                           │ 4.9 KiB │ 2 r, 1 w │ host │
│ models/weights/layer-17     │ 4.9 KiB │ 2 r, 1 w │ host │
│ 重み/重み/重み/重み/重み/17 │ 4.9 KiB │ 2 r, 1 w │ host │
│ [bold]                      │ 4.9 KiB │ 2 r, 1 w │ host │
└─────────────────────────────┴─────────┴──────────┴──────┘""",
}


def cuda_fails(_: Broker) -> dict[str, Any]:
    raise gdrpy.CudaError("cuInit", "CUDA_ERROR_NO_DEVICE", "no device")


class TestLs:
    def test_of_nothing_says_so(self, broker, capsys):
        assert main(["ls"]) == 0
        assert capsys.readouterr().out == "no regions\n"

    def test_lists_by_prefix(self, put, json_of):
        for name in ("a/2", "a/1", "b/1"):
            put(name)
        status, found = json_of("ls", "a/")
        assert status == 0
        assert [region["name"] for region in found["regions"]] == ["a/1", "a/2"]
        assert found["regions"][0]["nbytes"] == len(DATA)

    def test_names_the_gpu_in_json_by_number_uuid_and_product(self, put, json_of):
        put("on the GPU")
        put("on the host", "--device", "cpu")
        _, found = json_of("ls")
        named = [[region[key] for key in ("device", "uuid", "gpu")] for region in found["regions"]]
        assert named == [GPU, ["cpu", None, None]]

    def test_needs_no_cuda_of_the_broker(self, put, json_of, monkeypatch):
        put("table")
        monkeypatch.setattr(Broker, "status", cuda_fails)
        status, found = json_of("ls")
        assert status == 0
        assert [(region["name"], region["gpu"]) for region in found["regions"]] == [("table", None)]

    def test_shows_rights_and_state(self, put, capsys):
        put("table", "--seal", "--mode", "640", "--device", "cpu")
        assert main(["ls"]) == 0
        printed = capsys.readouterr().out
        for cell in ("table", "10.0 KiB", "host", "rw-r----- sealed", "0 r, 0 w"):
            assert f" {cell} " in printed

    @pytest.mark.parametrize(
        ("name", "shown"),
        [
            (
                "models/llama/1a2b3c4d/model-00001-of-00002.safetensors",
                "models…el-00001-of-00002.safetensors",
            ),
            ("重み/" * 12 + "17", "重み/…/重み/重み/重み/重み/重み/17"),
        ],
    )
    def test_keeps_the_end_of_a_long_name(self, name, shown, broker, monkeypatch, capsys):
        monkeypatch.setattr(output, "_PLAIN_WIDTH", 60)
        with gdrpy.connect() as client:
            client.put(name, b"x", "cpu").close()
        for words in (["ls"], ["top", "--count", "1"]):
            assert main(words) == 0
            assert f"│ {shown} " in capsys.readouterr().out

    @pytest.mark.parametrize(("columns", "table"), TABLES.items())
    def test_fits_the_terminal(self, monkeypatch, columns, table):
        from gdrpy.broker.replies import RegionInfo
        from gdrpy.cli.broker import ls
        from gdrpy.cli.output import Output

        some = {"size": 4096, "device": "cpu", "mode": 0o640, "uid": 0, "gid": 0, "version": 3}
        some |= {"sealed": True, "readers": 2, "writers": 1, "nbytes": 5000, "uuid": None}
        names = ["a", "models/weights/layer-17", "\u91cd\u307f/" * 5 + "17", "[bold]"]
        monkeypatch.setattr(Output, "width", lambda _: columns)
        regions = [RegionInfo(region=1, name=name, **some) for name in names]
        assert "\n" + ls.drawn(regions, Output()) == table

    def test_is_drawn_in_ascii_where_stdout_takes_no_more(self, put, gdrpy_command):
        put("table")
        done = gdrpy_command("ls", PYTHONIOENCODING="ascii")
        assert done.stdout.startswith("+-------+----------+")

    def test_is_as_wide_as_the_terminal_that_stdout_is(self, put):
        put("weights/" + "x" * 40)
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 60))
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        command = [sys.executable, "-m", "gdrpy", "ls"]
        subprocess.run(command, cwd=CHECKOUT, env=environment, stdout=theirs, check=True)
        lines = os.read(ours, 1 << 16).decode().splitlines()
        os.close(ours)
        os.close(theirs)
        assert {len(line) for line in lines} == {60}


class TestStat:
    def test_tells_who_holds_it(self, put, json_of):
        put("table")
        with gdrpy.connect() as client, client.get("table", gpu=False, readonly=True):
            status, found = json_of("stat", "table")
        assert status == 0
        assert [found[key] for key in ("device", "uuid", "gpu")] == GPU
        assert found["holders"] == [
            {"pid": os.getpid(), "uid": os.getuid(), "writable": False, "gpu": False, "count": 1}
        ]
        assert (found["readers"], found["writers"]) == (1, 0)

    def test_prints_metadata_that_json_lacks(self, broker, capsys):
        with gdrpy.connect() as client:
            client.allocate("x", 1, "cpu", metadata={"key": b"bytes"})
        assert main(["stat", "x"]) == 0
        assert 'metadata  {"key": "b\'bytes\'"}' in capsys.readouterr().out

    def test_of_a_missing_region_ends_with_1(self, broker, capsys):
        assert main(["stat", "nothing"]) == 1
        assert capsys.readouterr().err == "error: stat: there is no region of the name 'nothing'\n"


class TestAlloc:
    def test_makes_a_region(self, broker, json_of):
        status, made = json_of("alloc", "kv", "3M", "--mode", "0640")
        assert status == 0
        assert (made["name"], made["nbytes"], made["size"]) == ("kv", 3 << 20, 4 << 20)
        assert [made[key] for key in ("device", "uuid", "gpu")] == GPU
        assert (made["device"], made["mode"], made["version"]) == (0, "0640", 1)
        assert made["holders"] == []

    def test_finds_it_again(self, broker, capsys):
        assert main(["alloc", "kv", "3M"]) == 0
        assert main(["alloc", "kv", "3M"]) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert first == second == "kv: version 1, 3 MiB on GPU 0, takes 4 MiB"

    def test_of_another_size_ends_with_1(self, broker, capsys):
        assert main(["alloc", "kv", "3M"]) == 0
        assert main(["alloc", "kv", "4M"]) == 1
        assert "error: alloc: region 'kv' exists with 3145728 bytes" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (["--device", "7"], "no GPU 7: name another one, or take host memory by --device cpu"),
            (["--device", "cpu"], "there in all: ask for less"),
        ],
    )
    def test_that_the_machine_lacks_ends_with_1(self, broker, capsys, words, complaint):
        assert main(["alloc", "kv", "1T", *words]) == 1
        assert complaint in capsys.readouterr().err


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
            "error: table has 10240 bytes: --offset 11264 is not before its end\n"
        )
        assert not (tmp_path / "part").exists()

    def test_get_from_the_end_on_ends_with_1(self, put, tmp_path, capsys):
        put("table")
        assert main(["get", "table", str(tmp_path / "part"), "--offset", "10K"]) == 1
        assert capsys.readouterr().err == (
            "error: table has 10240 bytes: --offset 10240 is not before its end\n"
        )
        assert not (tmp_path / "part").exists()

    def test_get_beyond_the_end_says_how_many_there_are(self, put, tmp_path, capsys):
        put("table")
        words = ["--offset", "9K", "--nbytes", "2K"]
        assert main(["get", "table", str(tmp_path / "part"), *words]) == 1
        assert capsys.readouterr().err == (
            "error: table has 10240 bytes: 1024 from --offset 9216 on, not 2048\n"
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
        assert "there is nothing to put" in capsys.readouterr().err

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
        assert "give a FILE" in said["error"]["message"]

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


class TestRm:
    def test_deletes_what_it_can(self, put, json_of):
        put("a")
        put("c")
        status, said = json_of("rm", "a", "b", "c")
        assert status == 1
        assert said["deleted"] == ["a", "c"]
        assert list(said["errors"]) == ["b"]
        assert said["errors"]["b"] == "rm: there is no region of the name 'b'"
        assert json_of("ls")[1]["regions"] == []

    def test_recursive_deletes_what_is_below_the_name_too(self, put, json_of):
        for name in ("a", "a/b", "a/b/c", "ab", "b/c"):
            put(name)
        assert json_of("rm", "-r", "a", "b", "a/b")[1] == {
            "deleted": ["a", "a/b", "a/b/c", "b/c"],
            "errors": {},
        }
        assert [region["name"] for region in json_of("ls")[1]["regions"]] == ["ab"]

    def test_recursive_of_nothing_ends_with_1(self, broker, json_of):
        status, said = json_of("rm", "-r", "a")
        assert (status, said["errors"]) == (1, {"a": "rm: there is no region of the name 'a'"})


class TestSeal:
    def test_keeps_writers_away(self, put):
        put("table")
        assert main(["seal", "table"]) == 0
        with gdrpy.connect() as client, client.get("table", gpu=False) as region:
            assert (region.sealed, region.readonly) == (True, True)

    def test_gives_the_digest(self, put, json_of):
        put("table")
        status, said = json_of("seal", "table", "--digest")
        assert (status, said["sha256"]) == (0, hashlib.sha256(DATA).hexdigest())


class TestLoad:
    @pytest.fixture
    def weights(self, tmp_path: Path) -> Path:
        from gdrpy import safetensors

        tensors = {"bias": np.arange(3, dtype=np.float32), "scale": np.ones(2, np.int16)}
        path = tmp_path / "weights.safetensors"
        with gdrpy.alloc(safetensors.plan(tensors).nbytes) as region:
            safetensors.store(region, tensors)
            path.write_bytes(region.read())
        return path

    def test_gives_the_tensors_to_whoever_attaches(self, broker, weights, json_of):
        status, said = json_of("load", str(weights), "weights", "--seal")
        assert (status, said["tensors"], said["sealed"]) == (0, 2, True)
        with gdrpy.connect() as client, client.get("weights", gpu=False) as region:
            assert region.tensors()["bias"].read().tolist() == [0, 1, 2]

    def test_of_another_file_ends_with_1_and_leaves_nothing(self, broker, file, json_of, capsys):
        assert main(["load", str(file), "weights"]) == 1
        assert capsys.readouterr().err.startswith(f"error: {file}: ")
        assert json_of("ls")[1]["regions"] == []

    def test_of_a_missing_file_ends_with_2(self, broker, capsys):
        assert main(["load", "/nonexistent", "weights"]) == 2
        assert capsys.readouterr().err == (
            "error: cannot read /nonexistent: No such file or directory\n"
        )

    def test_takes_no_name_that_was_not_given_for_a_file(
        self, broker, weights, monkeypatch, capsys
    ):
        monkeypatch.chdir(weights.parent)
        weights.rename("weights")
        assert main(["load", "missing/weights.safetensors"]) == 2
        assert capsys.readouterr().err.endswith(": No such file or directory\n")

    def test_suggests_the_other_order_of_file_and_name(self, broker, weights, capsys):
        assert main(["load", "my weights", str(weights)]) == 2
        assert capsys.readouterr().err == (
            f"error: cannot read my weights: No such file or directory: did you mean 'gdrpy load "
            f"{weights} 'my weights''?\n"
        )


class TestWatch:
    def test_prints_a_line_an_event(self, put, watching: Callable[..., Any]):
        watch = watching("--count", "3")
        put("table")
        assert main(["seal", "table"]) == 0
        assert main(["rm", "table"]) == 0
        lines = watch().splitlines()
        assert [line.split()[:2] for line in lines] == [
            ["published", "table"],
            ["sealed", "table"],
            ["deleted", "table"],
        ]

    def test_says_what_an_event_without_a_name_means(self, put, watching: Callable[..., Any]):
        put("table")
        watch = watching("--count", "2")
        assert main(["rm", "table"]) == 0
        assert watch().splitlines()[1] == (
            "freed     the memory of a region that has neither a name nor a holder any more"
        )

    def test_of_a_prefix_passes_over_events_without_a_name(self, put, watching: Callable[..., Any]):
        put("table")
        watch = watching("model", "--count", "1")
        assert main(["rm", "table"]) == 0
        put("model")
        assert watch().split()[:2] == ["published", "model"]

    def test_prints_json_lines(self, put, watching: Callable[..., Any]):
        watch = watching("b", "--count", "1", "--json")
        put("a")
        put("b")
        event = json.loads(watch())
        assert (event["kind"], event["name"], event["version"]) == ("published", "b", 1)

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--count", "1"], "all regions that you may read: ends after 1 event or by Ctrl-C"),
            (
                ["tab", "--count", "2"],
                "regions whose names begin with 'tab' that you may read: ends after 2 events or "
                "by Ctrl-C",
            ),
            ([], "all regions that you may read: ends by Ctrl-C"),
        ],
    )
    def test_says_on_a_terminal_what_it_watches(self, broker, words, said):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "gdrpy", "watch", *words]
        with subprocess.Popen(
            command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=theirs
        ) as watch:
            os.close(theirs)
            with os.fdopen(ours, "rb", buffering=0) as terminal:
                shown = b""
                while not shown.endswith(b"\r\n"):
                    shown += terminal.read(1024)
            watch.kill()
        assert re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()) == f"watching {said}\r\n"

    def test_ends_by_ctrl_c_without_a_word(self, put, terminal):
        watch = terminal("watch")
        with gdrpy.connect() as client:
            while not client.status()["requests"].get("watch"):
                pass
        watch.press("\x03")
        assert watch.ending() == (130, "")

    def test_that_ctrl_c_ends_prints_nothing_but_events(self, broker, monkeypatch, capsys):
        def interrupted(watch: Watch) -> NoReturn:
            raise KeyboardInterrupt

        monkeypatch.setattr(Watch, "__next__", interrupted)
        assert main(["watch", "--json"]) == 130
        assert capsys.readouterr() == ("", "")

    @pytest.fixture
    def watching(self, broker: BrokerProcess) -> Callable[..., Any]:
        """Starts ``gdrpy watch``, and gives what to call for all that it printed."""

        def start(*words: str) -> Callable[[], str]:
            process = subprocess.Popen(
                [sys.executable, "-m", "gdrpy", "watch", *words],
                cwd=CHECKOUT,
                stdout=subprocess.PIPE,
                text=True,
            )
            with gdrpy.connect() as client:
                while not client.status()["requests"].get("watch"):
                    assert process.poll() is None

            def finish() -> str:
                with process:
                    printed, _ = process.communicate(timeout=30)
                    assert process.returncode == 0
                    return printed

            return finish

        return start


class TestTop:
    def test_shows_devices_users_processes_and_regions(self, broker, put, capsys):
        put("table")
        with gdrpy.connect() as client, client.get("table", gpu=False):
            assert main(["top", "--count", "1"]) == 0
        printed = capsys.readouterr().out
        assert f"{broker.socket}: 1 region, 1 lease, 2 sessions\n" in printed
        lines = [" ".join(line.strip("│ ").split()) for line in printed.splitlines()]
        bar = "─" * 40
        assert f"GPU 0 {bar} 2.0 MiB of 16.0 GiB 0%" in lines
        assert f"{getpass.getuser()} 2.0 MiB on GPU 0" in lines
        assert f"{os.getpid()} 2.0 MiB in 1 region, writes, by {getpass.getuser()}" in lines
        assert [line for line in lines if line.startswith("table │ 10.0 KiB │ 0 r, 1 w │ GPU 0")]

    def test_notes_the_regions_that_it_leaves_out(self, broker, capsys):
        with gdrpy.connect() as client:
            for number in range(23):
                client.allocate(f"{number:02}", 1, "cpu").close()
        assert main(["top", "--count", "1"]) == 0
        printed = capsys.readouterr().out
        assert "│ 19 " in printed
        assert "│ 20 " not in printed
        assert printed.endswith("  and 3 more: 'gdrpy ls' lists all\n")

    def test_prints_json_lines(self, put, capsys):
        put("table")
        assert main(["top", "--count", "2", "--interval", "0.01", "--json"]) == 0
        first, second = map(json.loads, capsys.readouterr().out.splitlines())
        assert first["requests_a_second"] is None
        assert second["requests_a_second"] > 0
        gpu, host = second["devices"]
        uuid = second["largest"][0]["uuid"]
        assert uuid.startswith("GPU-")
        assert (gpu["device"], gpu["uuid"], gpu["used"]) == (0, uuid, 2 << 20)
        assert (host["device"], host["uuid"], host["used"]) == ("cpu", None, 0)
        name = "gdrpy simulated GPU"
        assert (gpu["gpu"], host["gpu"], second["largest"][0]["gpu"]) == (name, None, name)
        user = {"uid": os.getuid(), "user": getpass.getuser()}
        user |= {"device": 0, "uuid": uuid, "gpu": name}
        assert second["users"] == [user | {"used": 2 << 20}]
        assert [region["name"] for region in second["largest"]] == ["table"]
        assert second["largest"][0]["mode"] == "0600"


class TestTopOnATerminal:
    @pytest.mark.parametrize("key", ["q", "\x03"], ids=["q", "Ctrl-C"])
    def test_ends_in_peace(self, put, terminal, key):
        put("table")
        top = terminal("top", lines=24)
        top.wait_for("│ table ")
        top.press(key)
        assert top.ending() == (0, "")

    def test_leaves_the_terminal_as_it_was(self, put, terminal):
        top = terminal("top", lines=24)
        before = termios.tcgetattr(top.theirs)
        top.wait_for("q quit")
        assert termios.tcgetattr(top.theirs) != before
        top.press("q")
        top.ending()
        assert termios.tcgetattr(top.theirs) == before

    def test_leaves_the_keys_to_others_where_json_is_wanted(self, broker, terminal):
        top = terminal("top", "--json")
        before = termios.tcgetattr(top.theirs)
        top.wait_for('"requests_a_second": null')
        assert termios.tcgetattr(top.theirs) == before

    def test_sorts_and_filters_by_keys(self, put, terminal):
        put("b/small")
        put("a/small")
        top = terminal("top", lines=24)
        top.wait_for("s sort: size   / show: all")
        top.press("s")
        assert re.findall("./small", top.wait_for("s sort: name   / show: all")) == [
            "a/small",
            "b/small",
        ]
        top.press("/b/")
        assert re.findall("./small", top.wait_for("/ show: b/_")) == ["b/small"]
        top.press("\r")
        top.wait_for("/ show: b/ ")
        top.press("/\x1b")
        assert len(re.findall("./small", top.wait_for("/ show: all"))) == 2

    def test_fills_no_more_lines_than_there_are(self, broker, terminal):
        with gdrpy.connect() as client:
            for number in range(9):
                client.allocate(f"{number}", 1, "cpu").close()
        seen = terminal("top", lines=14).wait_for("q quit")
        shown = re.findall(r"^│ (\d) ", seen, re.MULTILINE)
        assert shown == ["0", "1", "2", "3", "4"]
        assert "and 4 more: 'gdrpy ls' lists all" in seen


class TestKeys:
    def test_that_send_sequences_count_for_nothing(self):
        reader, writer = os.pipe()
        with os.fdopen(reader), os.fdopen(writer, "wb", buffering=0) as keyboard:
            terminal = keys.Keys(reader)
            keyboard.write(b"\x1b[A")
            assert terminal.within(10) == ""
            keyboard.write(b"s")
            assert terminal.within(10) == "s"
            assert terminal.within(0) == ""


#: What takes long to import, and a list has no use for.
HEAVY = "numpy cuda rich asyncio importlib.metadata gdrpy.cli.broker.stat gdrpy.cli.measure.copybw"
IMPORTING = """
import sys
from gdrpy.cli import keys, main
assert main({0}) == 0
heavy = sys.argv[1].split()
print(sorted(name for name in sys.modules if name in heavy or name.partition(".")[0] in heavy))
"""


class TestListOfMany:
    def test_takes_a_page_of_32_kib_an_exchange_and_imports_no_more_than_it_uses(self, broker):
        with gdrpy.connect() as client:
            for number in range(300):
                client.allocate(f"{number:04}", 1, "cpu").close()
            command = [sys.executable, "-c", IMPORTING.format(["ls"]), HEAVY]
            done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
            assert client.status()["requests"]["list"] == 3
        *lines, imported = done.stdout.splitlines()
        assert imported == "[]"
        assert len(lines) == 300 + 4
        for cell in ("0042", "1", "1 byte", "host", "rw-------", "0 r, 0 w"):
            assert f" {cell} " in lines[45]

    def test_shortens_long_names_without_more_imports(self, broker):
        with gdrpy.connect() as client:
            client.allocate("x" * 100 + "y" * 100, 1, "cpu").close()
        command = [sys.executable, "-c", IMPORTING.format(["ls"]), HEAVY]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
        assert "xxx…yyy" in done.stdout
        assert done.stdout.splitlines()[-1] == "[]"

    def test_is_the_same_json(self) -> None:
        from gdrpy.cli import output

        result = {"regions": [{"name": f"name {n}", "n": [n]} for n in range(101)], "more": None}
        text = output._json(result)
        assert json.loads(text) == result
        assert len(text.splitlines()) == 106
