"""``gdrpy alloc``."""

from __future__ import annotations

import pytest

from gdrpy.cli import main
from serving import GPU


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

    def test_says_it_in_whole_words_on_a_terminal(self, broker, file, terminal):
        name = "models/tensors/of/the/host"
        alloc = terminal("alloc", name, "123K", "--device", "cpu", columns=60)
        said = f"{name}: version 1, 123 KiB on host,\r\ntakes 124 KiB\r\n"
        assert alloc.wait_for("124 KiB\r\n") == said
        put = terminal("put", name, str(file), columns=60)
        said = f"{name}: version 2, 10 KiB on GPU 0,\r\ntakes 2 MiB\r\n"
        assert put.wait_for("2 MiB\r\n") == said

    def test_of_another_size_ends_with_1(self, broker, capsys):
        assert main(["alloc", "kv", "3M"]) == 0
        assert main(["alloc", "kv", "4M"]) == 1
        assert "error: alloc: region 'kv' exists with 3145728 bytes" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (["--device", "7"], "name one that it sees, or take host memory by --device cpu"),
            (["--device", "cpu"], "there in all: ask for less"),
        ],
    )
    def test_that_the_machine_lacks_ends_with_1(self, broker, capsys, words, complaint):
        assert main(["alloc", "kv", "1T", *words]) == 1
        assert complaint in capsys.readouterr().err
