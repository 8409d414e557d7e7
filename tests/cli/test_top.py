"""``gdrpy top``."""

from __future__ import annotations

import getpass
import json
import os
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

import gdrpy
from gdrpy.broker.replies import Holder, RegionInfo
from gdrpy.cli import keys, main
from gdrpy.cli.broker import top

#: Gives itself a name, holds a region, and waits for the end of its stdin.
HOLDER = """
import sys
import gdrpy
open("/proc/self/comm", "w").write(sys.argv[2])
with gdrpy.connect(sys.argv[1]) as broker, broker.allocate("held", 1 << 20, gpu=False):
    print(flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_by_a_process(socket: str, name: str) -> Iterator[int]:
    """Another process holds a region; yields its number."""
    command = [sys.executable, "-c", HOLDER, socket, name]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


class TestTop:
    def test_shows_devices_users_processes_and_regions(self, broker, put, capsys):
        put("table")
        with (
            gdrpy.connect() as client,
            gdrpy.connect() as another,
            client.get("table", gpu=False),
            another.get("table", gpu=False),
        ):
            assert main(["top", "--count", "1"]) == 0
        printed = capsys.readouterr().out
        assert f"{broker.socket}: 1 region, 2 leases, 3 sessions\n" in printed
        lines = [" ".join(line.strip("│ ").split()) for line in printed.splitlines()]
        bar = "─" * 40
        assert f"GPU 0 {bar} 2.0 MiB of 16.0 GiB 0%" in lines
        assert f"{getpass.getuser()} 2.0 MiB on GPU 0" in lines
        process = f"{os.getpid()} {Path('/proc/self/comm').read_text().strip()}"
        assert f"{process} 2.0 MiB in 1 region, writes, by {getpass.getuser()}" in lines
        assert [one for one in lines if one.startswith("table │ 0 r, 2 w │ 10.0 KiB │ 1 │ GPU 0")]

    def test_shows_who_holds_memory_without_a_name(self, broker, capsys):
        with held_by_a_process(broker.socket, "holder") as pid:
            with gdrpy.connect() as client:
                client.delete("held")
            assert main(["top", "--count", "1"]) == 0
            lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
            assert main(["top", "--count", "1", "--json"]) == 0
            told = json.loads(capsys.readouterr().out)
        user = getpass.getuser()
        words = f"2.0 MiB in 1 region, 1 without a name, writes, by {user}"
        assert f"{pid} holder {words}" in lines
        assert told["processes"] == [
            {
                "pid": pid,
                "uid": os.getuid(),
                "user": user,
                "size": 2 << 20,
                "regions": 1,
                "nameless": 1,
                "writes": True,
                "gpu_view": False,
                "asleep": 0,
                "older": 0,
            }
        ]
        (region,) = told["nameless"]
        assert (region["name"], region["size"], region["ended"]) == ("held", 2 << 20, False)
        assert [holder["pid"] for holder in region["holders"]] == [pid]

    def test_tells_users_of_other_namespaces_apart(self, broker, put, capsys, monkeypatch):
        """The broker has the number 0 for all of their processes."""
        put("table")
        holders = tuple(Holder(0, uid, False, False, 1) for uid in (4321, 4322))
        stat = gdrpy.Broker.stat

        def unseen(client: gdrpy.Broker, name: str) -> RegionInfo:
            return replace(stat(client, name), holders=holders)

        monkeypatch.setattr(gdrpy.Broker, "stat", unseen)
        with gdrpy.connect() as client, client.get("table", gpu=False):
            assert main(["top", "--count", "1"]) == 0
        lines = capsys.readouterr().out.splitlines()
        words = [" ".join(line.strip("│ ").split()) for line in lines]
        for uid in (4321, 4322):
            assert f"0 2.0 MiB in 1 region, by {uid}" in words

    @pytest.mark.parametrize("columns", [60, 120])
    def test_shows_versions_and_who_sleeps(self, broker, capsys, monkeypatch, columns):
        monkeypatch.setenv("COLUMNS", str(columns))

        def shown() -> list[str]:
            client.status()  # the broker has read what was sent before
            assert main(["top", "--count", "1"]) == 0
            lines = capsys.readouterr().out.splitlines()
            assert all(len(line) <= columns for line in lines)
            return [" ".join(line.strip("│ ").split()) for line in lines]

        views = "" if columns == 60 else ", writes, GPU view"
        with gdrpy.connect() as client, client.put("kept", [1]):
            first = client.put("weights", b"x", seal=True)
            second = client.put("weights", b"y", seal=True)
            gdrpy.detach_many([first, second])
            (process,) = [line for line in shown() if line.startswith(f"{os.getpid()} ")]
            words = f"2.0 MiB in 1 region, 2 asleep (1 older){views}, by {getpass.getuser()}"
            assert process.endswith(words)
            assert [line for line in shown() if line.startswith("weights │ 1 asleep │ 1 byte │ 2")]
            second.attach()
            assert [line for line in shown() if line.startswith("weights │ 1 r, 0 w │ ")]
            first.close()
            client.sleep_many([second])
            (copy,) = [line for line in shown() if line.startswith("weights.host/")]
            assert copy.split(" │ ")[1:3] == ["1 asleep", "1 byte"]
            second.close()
            assert not [line for line in shown() if "asleep" in line]

    @pytest.mark.parametrize(
        ("name", "shown", "room"),
        [
            ("data-loader-16b", "data-loader-16b", 0),
            ("a\nb", "'a\\nb'", 0),
            ("data-loader-16b", "", -1),
        ],
    )
    def test_names_a_command_where_there_is_room(
        self, broker, capsys, monkeypatch, name, shown, room
    ):
        with held_by_a_process(broker.socket, name) as pid:
            rest = f"   2.0 MiB in 1 region, writes, by {getpass.getuser()}"
            monkeypatch.setenv("COLUMNS", str(len(f"  {f'{pid} {shown or name}':12}{rest}") + room))
            assert main(["top", "--count", "1"]) == 0
        (line,) = [
            one for one in capsys.readouterr().out.splitlines() if one.startswith(f"  {pid}")
        ]
        assert line == f"  {f'{pid} {shown}'.strip():12}{rest}"

    @pytest.mark.parametrize("held", [False, True])
    def test_is_shown_on_the_narrowest_terminal(self, put, monkeypatch, held):
        put("table")
        monkeypatch.setenv("COLUMNS", "5")
        with gdrpy.connect() as client:
            kept = client.get("table", gpu=False) if held else None
            assert main(["top", "--count", "1"]) == 0
        del kept

    def test_shows_the_user_of_a_process_at_60_columns(self, broker, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "60")
        with gdrpy.connect() as client, client.put("table", [1]):
            assert main(["top", "--count", "1"]) == 0
        (line,) = [
            one
            for one in capsys.readouterr().out.splitlines()
            if one[2:].startswith(f"{os.getpid()} ")
        ]
        assert line.endswith(f"in 1 region, writes, GPU view, by {getpass.getuser()}")
        assert len(line) <= 60

    def test_names_no_process_of_another_user(self):
        assert top._command(os.getpid(), os.getuid()) != ""
        assert top._command(os.getpid(), os.getuid() + 1) == ""
        assert top._command(1 << 30, 0) == ""

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
