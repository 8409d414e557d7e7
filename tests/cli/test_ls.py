"""``gdrpy ls``."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
from typing import Any

import pytest

import gdrpy
from gdrpy.broker.client.broker import Broker
from gdrpy.cli import main, output
from serving import CHECKOUT, DATA, GPU

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
└─────────────────────────────┴─────────┴──────────┴──────┴──────────────────┘
no room for: version, owner (see --json)""",
    60: """
┏━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━┳━━━━━━┓
┃ name                        ┃ size    ┃ held by  ┃ on   ┃
┡━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━╇━━━━━━┩
│ a                           │ 4.9 KiB │ 2 r, 1 w │ host │
│ models/weights/layer-17     │ 4.9 KiB │ 2 r, 1 w │ host │
│ 重み/重み/重み/重み/重み/17 │ 4.9 KiB │ 2 r, 1 w │ host │
│ [bold]                      │ 4.9 KiB │ 2 r, 1 w │ host │
└─────────────────────────────┴─────────┴──────────┴──────┘
no room for: rights, version, owner (see --json)""",
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

    def test_is_as_wide_as_columns_says(self, put, gdrpy_command):
        put("weights/" + "x" * 40)
        done = gdrpy_command("ls", COLUMNS="60")
        *table, left_out = done.stdout.splitlines()
        assert {len(line) for line in table} == {60}
        assert left_out == "no room for: on, rights, version, owner (see --json)"

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
        lines = os.read(ours, 1 << 16).decode().splitlines()[:-1]
        os.close(ours)
        os.close(theirs)
        assert {len(line) for line in lines} == {60}


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
