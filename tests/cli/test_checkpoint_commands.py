"""``gdrpy load`` of files and folders, and ``gdrpy stat`` of what it loaded."""

from __future__ import annotations

import hashlib
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdrpy
from checkpoints import SHARDS, TENSORS, write_checkpoint
from gdrpy import safetensors
from gdrpy.cli import main, output
from gdrpy.cli.output import Output
from serving import CHECKOUT, BrokerProcess

FIRST, SECOND, THIRD = SHARDS
#: What the region of each file has.
FILE_BYTES = 4270


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "llama")


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has copies get a Ctrl-C when more than so many bytes are done."""

    def after(nbytes: int) -> None:
        def tell(done: int, total: int) -> None:
            if done > nbytes:
                signal.raise_signal(signal.SIGINT)

        @contextmanager
        def copying(self: Output, what: str) -> Iterator[Any]:
            yield tell

        monkeypatch.setattr(Output, "copying", copying)

    return after


class TestCheckpoint:
    def test_is_sealed_with_all_of_its_files(self, broker, folder, json_of, capsys):
        json_of("load", str(folder), "--device", "cpu")
        status, said = json_of("seal", "llama")
        assert (status, said["sealed"]) == (0, True)
        assert [one["sealed"] for one in said["files"]] == [True] * 3
        assert all(one["sealed"] for one in json_of("ls")[1]["regions"])
        assert main(["seal", "llama", "--digest"]) == 0
        *digests, last = capsys.readouterr().out.splitlines()
        assert last == "llama is sealed, and its 3 files"
        found = [re.fullmatch(r"(\S+): SHA-256 (\w{64})", line) for line in digests]
        assert [match[1] for match in found if match] == [
            *(one["name"] for one in said["files"]),
            "llama",
        ]
        with gdrpy.connect() as client:
            for match in filter(None, found):
                content = client.get(match[1], gpu=False).read()
                assert hashlib.sha256(content).hexdigest() == match[2]

    @pytest.mark.parametrize("command", ["put", "load"])
    def test_is_replaced_whole_by_a_file(self, broker, folder, json_of, command):
        json_of("load", str(folder), "--device", "cpu")
        names = ["llama", str(folder / FIRST)]
        names = names if command == "put" else names[::-1]
        assert json_of(command, *names, "--device", "cpu")[0] == 0
        assert [one["name"] for one in json_of("ls")[1]["regions"]] == ["llama"]

    def test_is_replaced_with_a_warning_by_a_file_of_any_size(self, broker, folder, capsys):
        assert main(["load", str(folder), "--device", "cpu"]) == 0
        capsys.readouterr()
        assert main(["put", "llama", str(folder / FIRST), "--device", "cpu"]) == 0
        assert capsys.readouterr().err == (
            "warning: llama was a checkpoint: its files are deleted too\n"
        )


class TestLoadOfAFolder:
    def test_gives_the_tensors_to_whoever_attaches(self, broker, folder, json_of):
        status, said = json_of("load", str(folder), "models/llama", "--device", "cpu", "--seal")
        assert (status, said["name"], said["sealed"]) == (0, "models/llama", True)
        assert (said["tensors"], said["read_bytes"]) == (6, 3 * FILE_BYTES)
        assert [(one["name"].rpartition("/")[2], one["nbytes"]) for one in said["files"]] == [
            (file, FILE_BYTES) for file in SHARDS
        ]
        with gdrpy.connect() as client:
            found = client.tensors("models/llama")
        assert {name: array.numpy().tolist() for name, array in found.items()} == {
            name: array.tolist() for name, array in TENSORS.items()
        }

    def test_keeps_the_mode_of_what_it_replaces_unless_told_otherwise(
        self, broker, folder, json_of
    ):
        for words, mode in (
            (["--mode", "0644"], "0644"),
            ([], "0644"),
            (["--mode", "0600"], "0600"),
        ):
            said = json_of("load", str(folder), "llama", "--device", "cpu", *words)[1]
            assert {one["mode"] for one in (said, *said["files"])} == {mode}

    def test_keeps_the_seal_of_what_it_replaces_unless_told_otherwise(
        self, broker, folder, json_of
    ):
        for words, sealed in (([], False), (["--seal"], True), ([], True), (["--no-seal"], False)):
            said = json_of("load", str(folder), "llama", "--device", "cpu", *words)[1]
            assert {one["sealed"] for one in (said, *said["files"])} == {sealed}

    def test_has_the_folders_name_by_default(self, broker, folder, monkeypatch, json_of):
        assert json_of("load", str(folder), "--device", "cpu")[1]["name"] == "llama"
        (folder.parent / "link").symlink_to(folder)
        assert json_of("load", str(folder.parent / "link"))[1]["name"] == "link"
        monkeypatch.chdir(folder)
        assert json_of("load", ".", "--mode", "0644")[1]["name"] == "llama"

    def test_says_what_it_did_in_two_lines(self, broker, folder, capsys):
        assert main(["load", str(folder), "--seal"]) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert first == "llama: version 1, 6 tensors in 3 files, 12.5 KiB on GPU 0, sealed"
        assert re.fullmatch(r"read 12\.5 KiB in \d\.\d s, \S+ [KMG]iB/s", second)

    def test_again_reads_nothing(self, broker, folder, capsys):
        assert main(["load", str(folder), "--device", "cpu"]) == 0
        capsys.readouterr()
        assert main(["load", str(folder), "--device", "cpu"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "llama: version 1, 6 tensors in 3 files, 12.5 KiB on host",
            "nothing was read: all of it was there already",
        ]

    def test_interrupted_says_how_to_go_on(self, broker, folder, interrupting, capsys, json_of):
        interrupting(FILE_BYTES)
        assert main(["load", str(folder), "--device", "cpu"]) == 130
        assert capsys.readouterr().err == (
            "warning: files that were loaded stay: the same command goes on with the next, and "
            "'gdrpy rm -r llama' deletes them\n"
        )
        interrupting(3 * FILE_BYTES)
        (kept,) = json_of("ls")[1]["regions"]
        assert kept["name"].endswith(FIRST)
        said = json_of("load", str(folder), "--device", "cpu")[1]
        assert said["read_bytes"] == 2 * FILE_BYTES
        assert said["files"][0]["region"] == kept["region"]
        assert json_of("rm", "-r", "llama")[1]["deleted"] == ["llama"]
        assert json_of("ls")[1]["regions"] == []

    def test_after_a_part_says_what_was_there(self, broker, folder, interrupting, capsys):
        interrupting(FILE_BYTES)
        assert main(["load", str(folder), "--device", "cpu"]) == 130
        interrupting(3 * FILE_BYTES)
        capsys.readouterr()
        assert main(["load", str(folder), "--device", "cpu"]) == 0
        assert re.search(
            r"^read 8\.3 KiB in .*/s, the other 4\.2 KiB were there already$",
            capsys.readouterr().out,
            re.MULTILINE,
        )

    @pytest.mark.parametrize("number", [0, 1])
    def test_with_a_missing_or_cut_shard_ends_with_1(self, broker, folder, json_of, number):
        if number:
            os.truncate(folder / SECOND, 1000)
        else:
            (folder / SECOND).unlink()
        status, said = json_of("load", str(folder))
        assert status == 1
        assert SECOND in said["error"]["message"]
        assert "copy or download" in said["error"]["message"]
        assert json_of("ls")[1]["regions"] == []

    def test_without_a_checkpoint_ends_with_1(self, broker, tmp_path, capsys):
        (tmp_path / "empty").mkdir()
        assert main(["load", str(tmp_path / "empty")]) == 1
        assert capsys.readouterr().err.startswith(
            f"error: load: {tmp_path}/empty holds no checkpoint: "
        )

    def test_without_room_ends_with_1_and_goes_on(self, start_serving, folder, json_of):
        small = start_serving("--max-bytes", "5M").socket
        status, said = json_of("load", str(folder), "--socket", small)
        assert status == 1
        assert f"no room for '{THIRD}'" in said["error"]["message"]
        assert "free memory and load again" in said["error"]["message"]
        names = [region["name"] for region in json_of("ls", "--socket", small)[1]["regions"]]
        assert [name.rpartition("/")[2] for name in names] == [FIRST, SECOND]

    def test_whose_broker_is_killed_ends_with_1_and_goes_on(
        self, broker: BrokerProcess, folder, monkeypatch, json_of
    ):
        connect = gdrpy.connect
        monkeypatch.setattr(gdrpy, "connect", lambda path: connect(path, reconnect=0.1))
        kills = []

        @contextmanager
        def killing(self: Output, what: str) -> Iterator[Any]:
            def tell(done: int, total: int) -> None:
                if done > FILE_BYTES and not kills:
                    kills.append(done)
                    broker.kill()

            yield tell

        monkeypatch.setattr(Output, "copying", killing)
        status, said = json_of("load", str(folder), "--device", "cpu")
        assert (status, said["error"]["type"]) == (1, "BrokerUnavailable")
        broker.start()
        status, said = json_of("load", str(folder), "--device", "cpu")
        assert (status, said["read_bytes"]) == (0, 2 * FILE_BYTES)


class TestDigest:
    def test_is_that_of_every_file(self, broker, folder, json_of):
        said = json_of("load", str(folder), "--device", "cpu", "--seal", "--digest")[1]
        expected = []
        for file in SHARDS:
            image = b"".join(safetensors.image_of(folder / file))
            expected.append(hashlib.sha256(image).hexdigest())
        assert said["digests"] == expected

    def test_of_a_single_file_is_told(self, broker, folder, capsys):
        assert main(["load", str(folder / FIRST), "one", "--seal", "--digest"]) == 0
        digest = hashlib.sha256(b"".join(safetensors.image_of(folder / FIRST))).hexdigest()
        assert f"one has the file's SHA-256 {digest}" in capsys.readouterr().out.splitlines()

    def test_finds_a_file_that_has_other_bytes_at_the_same_time(self, broker, folder, json_of):
        json_of("load", str(folder), "--device", "cpu", "--seal")
        path = folder / SECOND
        state, data = path.stat(), path.read_bytes()
        path.write_bytes(data[:-1] + b"\xff")
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        status, said = json_of("load", str(folder), "--device", "cpu", "--seal", "--digest")
        assert status == 1
        assert re.fullmatch(
            r"load: region '(llama/[0-9a-f]{8}/model-2-of-3.safetensors)' has the SHA-256 \w{64}, "
            rf"and {re.escape(str(path))} the SHA-256 \w{{64}}: delete it by 'gdrpy rm -r \1' and "
            r"load again",
            said["error"]["message"],
        )

    def test_needs_a_seal(self, broker, folder, capsys):
        assert main(["load", str(folder), "--digest"]) == 2
        assert "--digest needs --seal" in capsys.readouterr().err
        assert main(["load", str(folder), "--seal"]) == 0
        assert main(["load", str(folder), "--digest"]) == 0


class TestProgress:
    def test_is_a_line_now_and_then_where_stderr_is_no_terminal(
        self, broker, folder, monkeypatch, capsys
    ):
        monkeypatch.setattr(output, "_SECONDS_BETWEEN_LINES", 0)
        assert main(["load", str(folder), "--device", "cpu"]) == 0
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 6
        for line in lines:
            assert re.fullmatch(
                r"llama: [\d.]+ KiB of 12\.5 KiB, \S+ ([KM]iB|bytes)/s, \d+ s left", line
            )

    def test_is_silent_where_there_is_little_to_do(self, broker, folder, capsys):
        assert main(["load", str(folder), "--device", "cpu"]) == 0
        assert capsys.readouterr().err == ""

    def test_is_a_bar_with_bytes_speed_and_time_on_a_terminal(self, broker, folder):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "gdrpy", "load", str(folder), "--device", "cpu"]
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}
        subprocess.run(
            command,
            cwd=CHECKOUT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            check=True,
        )
        os.close(theirs)
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(ours, 1 << 16).decode())
        os.close(ours)
        assert re.search(r"llama ━+ 12\.5/12\.5 KiB .*00:00", shown)


class TestStat:
    def test_lists_the_tensors_of_a_region(self, broker, folder, json_of, capsys):
        assert main(["load", str(folder / FIRST), "one", "--device", "cpu"]) == 0
        capsys.readouterr()
        assert main(["stat", "one"]) == 0
        text = capsys.readouterr().out
        assert "tensors   2, 3.9 KiB\n" in text
        assert text.endswith(
            "┏━━━━━━━━━━━━━━━━━┳━━━━━━┳━━━━━━━━━━┳━━━━━━━━━━┓\n"
            "┃ tensor          ┃ type ┃ shape    ┃ size     ┃\n"
            "┡━━━━━━━━━━━━━━━━━╇━━━━━━╇━━━━━━━━━━╇━━━━━━━━━━┩\n"
            "│ layers.1.weight │ F32  │ [20, 50] │ 3.9 KiB  │\n"
            "│ layers.1.bias   │ I16  │ [7]      │ 14 bytes │\n"
            "└─────────────────┴──────┴──────────┴──────────┘\n"
        )
        assert json_of("stat", "one")[1]["tensors"][1] == {
            "name": "layers.1.bias",
            "dtype": "I16",
            "shape": [7],
            "nbytes": 14,
            "region": "one",
            "offset": 4256,
        }

    def test_lists_those_of_all_files_of_a_checkpoint(self, broker, folder, json_of, capsys):
        json_of("load", str(folder), "--device", "cpu")
        found = json_of("stat", "llama")[1]["tensors"]
        assert {one["name"] for one in found} == set(TENSORS)
        assert len({one["region"] for one in found}) == 3
        assert main(["stat", "llama"]) == 0
        assert "tensors   6 in 3 files, 11.8 KiB\n" in capsys.readouterr().out

    def test_counts_the_bytes_of_tied_weights_once(self, broker, capsys):
        with gdrpy.connect() as client:
            weights = {"x": np.zeros(4, np.float32), "none": np.zeros(0, np.float32)}
            client.put_tensors("tied", weights, "cpu", aliases={"y": "x"}).close()
        assert main(["stat", "tied"]) == 0
        assert "tensors   3, 16 bytes\n" in capsys.readouterr().out

    def test_sums_the_bytes_of_all_files_of_a_checkpoint(self, broker, folder, json_of, capsys):
        json_of("load", str(folder), "--device", "cpu")
        with gdrpy.connect() as one, gdrpy.connect() as two:
            kept = one.tensors("llama", readonly=True), two.tensors("llama")
            said = json_of("stat", "llama")[1]
            assert main(["stat", "llama"]) == 0
            del kept
        assert (said["nbytes"], said["readers"], said["writers"]) == (3 * FILE_BYTES, 1, 1)
        assert [one["nbytes"] for one in said["files"]] == [FILE_BYTES] * 3
        assert said["size"] > sum(one["size"] for one in said["files"])
        assert said["holders"] == [
            {
                "pid": os.getpid(),
                "uid": os.getuid(),
                "writable": True,
                "gpu": False,
                "count": 6,
                "exporter": False,
            }
        ]
        text = capsys.readouterr().out
        assert "\nsize      12.5 KiB in 3 files, takes " in text
        assert "\nheld by   1 reader, 1 writer\n" in text

    def test_folds_long_names_at_60_columns(self, broker, monkeypatch, capsys):
        monkeypatch.setattr(output, "_PLAIN_WIDTH", 60)
        tensors = {
            "model.layers.31.self_attn.q_proj.weight": np.zeros((16, 14336), np.float16),
            "重み/" * 8: np.zeros(1, np.uint8),
            "\x1b[2J": np.zeros(1, np.uint8),
        }
        with gdrpy.connect() as client:
            client.put_tensors("w", tensors, "cpu").close()
        assert main(["stat", "w"]) == 0
        rows = [line for line in capsys.readouterr().out.splitlines() if line[0] == "│"]
        assert rows == [
            "│ model.layers.31.        │ F16  │ [16, 14336] │ 448.0 KiB │",
            "│ self_attn.q_proj.weight │      │             │           │",
            "│ '\\x1b[2J'               │ U8   │ [1]         │ 1 byte    │",
            "│ 重み/重み/重み/重み/    │ U8   │ [1]         │ 1 byte    │",
            "│ 重み/重み/重み/重み/    │      │             │           │",
        ]

    def test_leaves_out_names_that_cannot_be(self, broker, json_of):
        with gdrpy.connect() as client:
            client.put("llama", b'["", "absent"]', "cpu", metadata={"format": "checkpoint"}).close()
        assert json_of("stat", "llama")[1]["files"] == []

    def test_has_no_tensors_of_other_regions(self, broker, json_of):
        with gdrpy.connect() as client:
            client.put("table", [1], "cpu").close()
        assert json_of("stat", "table")[1]["tensors"] == []

    def test_warns_of_tensors_that_cannot_be_read(self, broker, json_of, capsys):
        with gdrpy.connect() as client:
            metadata = {"format": "safetensors"}
            client.allocate("table", 100, "cpu", metadata=metadata).close()
        assert main(["stat", "table"]) == 0
        assert capsys.readouterr().err == (
            "warning: its tensors cannot be read: tensors: region 'table' holds no "
            "valid tensors (safetensors: not in this format: a header begins with '{', not with "
            "b''): publish them again\n"
        )
        assert json_of("stat", "table")[1]["tensors"] is None


class TestLists:
    @pytest.mark.parametrize(
        ("words", "key"), [(["ls"], "regions"), (["top", "--count", "1"], "largest")]
    )
    def test_show_a_checkpoint_with_the_sums_of_its_files(
        self, broker, folder, json_of, words, key
    ):
        json_of("load", str(folder), "--device", "cpu")
        with gdrpy.connect() as client:
            # No file of the checkpoint, though its name looks like one.
            client.put("llama/01234567/file", b"x" * (1 << 20), "cpu").close()
            kept = client.tensors("llama", readonly=True)
            regions = {one["name"]: one for one in json_of(*words)[1][key]}
            own = {region.name: region.nbytes for region in client.list()}
            used = client.status()["used"]["-1"]
            del kept
        assert {name: one["nbytes"] for name, one in regions.items()} == own
        assert sum(one["size"] for one in regions.values()) == used
        size = sum(one["size"] for name, one in regions.items() if name[-6:] != "7/file")
        assert regions.pop("llama")["checkpoint"] == {
            "nbytes": 3 * FILE_BYTES,
            "size": size,
            "readers": 1,
            "writers": 0,
            "asleep": 0,
        }
        assert [one["checkpoint"] for one in regions.values()] == [None] * 4

    @pytest.mark.parametrize(
        ("words", "key"), [(["ls"], "regions"), (["top", "--count", "1"], "largest")]
    )
    def test_open_no_region_that_is_too_large_for_a_list_of_files(
        self, broker, json_of, monkeypatch, words, key
    ):
        monkeypatch.setattr("gdrpy.cli.broker.checkpoints._LIST_MOST", 100)
        with gdrpy.connect() as client:
            metadata = {"format": "checkpoint"}
            client.allocate("x", 4096, "cpu", metadata=metadata).close()
            client.put("x/00000000/f", b"bytes", "cpu").close()
        monkeypatch.setattr(gdrpy.Broker, "get", None)
        assert {one["nbytes"] for one in json_of(*words)[1][key]} == {4096, 5}

    def test_of_top_read_what_a_checkpoint_lists_once(self, broker, folder, json_of, capsys):
        json_of("load", str(folder), "--device", "cpu")
        with gdrpy.connect() as client:
            before = client.status()["requests"]["get"]
            assert main(["top", "--count", "3", "--interval", "0.01"]) == 0
            assert client.status()["requests"]["get"] == before + 1
        assert capsys.readouterr().out.count("│ llama ") == 3


class TestRm:
    def test_of_a_checkpoint_deletes_its_files(self, broker, folder, json_of):
        other = "llama/01234567/other"
        for words, left in (["rm"], [other]), (["rm", "-r"], []):
            json_of("load", str(folder), "--device", "cpu")
            with gdrpy.connect() as client:
                client.put(other, b"x", "cpu").close()
            deleted = ["llama", *{other} - {*left}]
            assert json_of(*words, "llama") == (0, {"deleted": deleted, "errors": {}})
            assert [one["name"] for one in json_of("ls")[1]["regions"]] == left

    def test_of_a_file_of_a_checkpoint_wants_to_be_recursive(self, broker, folder, json_of, capsys):
        file = json_of("load", str(folder), "--device", "cpu")[1]["files"][0]["name"]
        why = (
            f"{file!r} is a file of checkpoint 'llama', which cannot be opened without it: delete "
            f"all of it by `gdrpy rm llama`, or this file alone by `gdrpy rm -r {file}`"
        )
        assert json_of("rm", file) == (1, {"deleted": [], "errors": {file: f"rm: {why}"}})
        capsys.readouterr()
        assert main(["put", file, str(folder / FIRST)]) == 1
        assert capsys.readouterr().err == f"error: put: {why}\n"
        assert json_of("rm", "-r", file) == (0, {"deleted": [file], "errors": {}})

    def test_of_a_file_that_no_checkpoint_lists_deletes_it(
        self, broker, folder, interrupting, json_of
    ):
        interrupting(FILE_BYTES)
        assert main(["load", str(folder), "--device", "cpu"]) == 130
        with gdrpy.connect() as client:
            (left,) = client.list()
            client.put("llama", b"[]", "cpu", metadata={"format": "checkpoint"}).close()
        assert json_of("rm", str(left.name))[1] == {"deleted": [left.name], "errors": {}}


class TestGet:
    def test_of_a_checkpoint_copies_its_files_and_not_their_list(
        self, broker, folder, tmp_path, json_of, capsys
    ):
        files = json_of("load", str(folder), "llama", "--device", "cpu")[1]["files"]
        copy = tmp_path / "copy"
        assert main(["get", "llama", str(copy)]) == 1
        assert capsys.readouterr().err == (
            "error: get: 'llama' is a checkpoint, whose files are regions 'llama/'*: 'gdrpy ls "
            "llama/' lists them, and 'gdrpy get' copies each\n"
        )
        assert not copy.exists()
        assert main(["get", files[0]["name"], str(copy)]) == 0
        assert copy.stat().st_size == FILE_BYTES
