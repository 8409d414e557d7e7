"""``gdrpy watch``."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

import gdrpy
from gdrpy.broker.client.watch import Watch
from gdrpy.cli import main
from serving import CHECKOUT, BrokerProcess


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
