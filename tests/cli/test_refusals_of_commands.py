"""What the commands that ask a broker say when it refuses, or there is none."""

from __future__ import annotations

import errno
import re
import shlex

import pytest

import gdrpy
from gdrpy.cli import main
from serving import GPU


class TestWithoutBroker:
    @pytest.mark.parametrize(
        "words",
        [
            ["ls"],
            ["stat", "x"],
            ["alloc", "x", "1M"],
            ["put", "x", "/dev/null"],
            ["get", "x"],
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
        assert main([command, "nothing"]) == 1
        why = "there is no region of the name 'nothing': 'gdrpy ls' lists them"
        assert capsys.readouterr().err == f"error: {command}: {why}\n"

    @pytest.mark.parametrize("name", ["w", "it's w"])
    @pytest.mark.parametrize("command", ["get", "seal", "stat"])
    def test_of_a_region_that_sleeps_says_how_to_see_its_copy(self, broker, capsys, command, name):
        with gdrpy.connect() as client, client.put(name, b"x", seal=True) as region:
            client.sleep_many([region])
            assert main([command, name]) == 1
            said = capsys.readouterr().err
            shown = re.fullmatch(
                rf"error: {command}: the region (.*) sleeps: 'gdrpy (.*)' shows its copy\n", said
            )
            assert shown is not None
            assert shown[1] == repr(name)
            assert main(shlex.split(shown[2])) == 0
            assert f" {name}.host/" in capsys.readouterr().out

    def test_that_makes_a_region_is_the_one_that_was_typed(self, broker, file, capsys):
        for words in (["put", "x", str(file)], ["alloc", "x", "1M"]):
            assert main([*words, "--device", "7"]) == 1
            assert capsys.readouterr().err == (
                f"error: {words[0]}: the broker sees no GPU 7, but {GPU[1]} (GPU 0): name one that "
                f"it sees, or take host memory by --device cpu\n"
            )

    @pytest.mark.parametrize("command", ["get", "rm", "seal", "stat"])
    @pytest.mark.parametrize("typed", ["wieghts", "WEIGHTS"])
    def test_suggests_a_name_that_the_user_may_read(self, put, capsys, command, typed):
        put("Weights")
        assert main([command, typed]) == 1
        said = f"there is no region of the name {typed!r}: did you mean 'Weights'?"
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
        [["stat"], ["alloc", "1M"], ["put", "/dev/null"], ["get"], ["rm"], ["seal"]],
    )
    def test_is_wrong_usage(self, capsys, words, name):
        with pytest.raises(SystemExit) as caught:
            main([words[0], name, *words[1:]])
        assert caught.value.code == 2
        assert "argument NAME: name must " in capsys.readouterr().err

    @pytest.mark.parametrize("command", ["ls", "watch"])
    def test_is_no_prefix_either(self, capsys, command):
        with pytest.raises(SystemExit) as caught:
            main([command, "\udcff"])
        assert caught.value.code == 2
        assert "argument PREFIX: prefix must be " in capsys.readouterr().err
