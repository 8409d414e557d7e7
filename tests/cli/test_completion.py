"""``gdrpy completion``: its scripts; that of bash in bash, which is everywhere."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gdrpy
from gdrpy.cli import COMMANDS, command_parser, main
from serving import CHECKOUT, BrokerProcess

#: Completes the last of the words, and prints what there is one a line.
COMPLETE = """
eval "$(cat "$1")"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_gdrpy
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """The script of a shell."""

    def make(shell: str) -> str:
        assert main(["completion", shell]) == 0
        return capsys.readouterr().out

    return make


@pytest.fixture
def complete(script: Callable[[str], str], tmp_path: Path) -> Callable[..., list[str]]:
    """What bash offers for the last of the words after ``gdrpy``."""
    (tmp_path / "script").write_text(script("bash"))
    program = tmp_path / "gdrpy"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gdrpy "$@"\n')
    program.chmod(0o755)

    def run(*words: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-c", COMPLETE, "bash", str(tmp_path / "script"), "gdrpy", *words],
            cwd=CHECKOUT,
            env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.split("\n")[:-1] if done.stdout != "\n" else []

    return run


class TestBash:
    @pytest.mark.parametrize(
        ("words", "offered"),
        [
            (["se"], ["serve", "seal"]),
            (["--v"], ["--version"]),
            (["seal", "--"], ["--help", "--json", "--socket", "--digest"]),
            (["serve", "--keeper", ""], ["process", "systemd", "none"]),
            (["serve", "--keeper", "s"], ["systemd"]),
            (["completion", ""], ["bash", "zsh", "fish"]),
            (["help", "se"], ["serve", "seal"]),
            (["serve", "--socket", ""], []),
            (["copybw", "--plot", ""], []),
            (["get", "x", "--offset", ""], []),
            (["juggle", ""], []),
        ],
    )
    def test_is_offered_what_fits(self, complete, words, offered):
        assert complete(*words) == offered

    def test_is_offered_the_names_of_regions(
        self, complete, broker_process: BrokerProcess, monkeypatch, tmp_path
    ):
        monkeypatch.setenv("GDRPY_SOCKET", broker_process.socket)
        evil = f"$(touch {tmp_path}/evil)"
        with gdrpy.connect() as client:
            for name in ("models/a", "models/b", "table", evil):
                client.allocate(name, 1, "cpu").close()
        assert complete("get", "mod") == ["models/a", "models/b"]
        assert complete("rm", "table", "t") == ["table"]
        assert complete("rm", "$") == [
            evil.replace("$", "\\$").replace("(", "\\(").replace(")", "\\)").replace(" ", "\\ ")
        ]
        assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
class TestScript:
    def test_has_every_command_and_every_option(self, script, shell):
        text = script(shell)
        for name in COMMANDS:
            options = {word for a in command_parser(name)._actions for word in a.option_strings}
            for word in (name, *options - {"-h"}):
                shown = f"-l {word[2:]} " if shell == "fish" and word[:2] == "--" else word
                assert shown in text

    def test_has_no_gap_left(self, script, shell):
        assert "@" not in script(shell).replace('"$@"', "")


def test_json_has_the_script(json_of, capsys):
    status, told = json_of("completion", "fish")
    assert status == 0
    assert main(["completion", "fish"]) == 0
    assert told == {"shell": "fish", "script": capsys.readouterr().out}
