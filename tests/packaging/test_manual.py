"""The manual pages say what --help says, and `man` shows them without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gdrpy.cli import COMMANDS, command_parser, parser
from gdrpy.cli.header import gdrpy_version

CHECKOUT = Path(__file__).parents[2]
NAMES = ["gdrpy", *(f"gdrpy-{name}" for name in COMMANDS)]


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pages."""
    folder = tmp_path_factory.mktemp("man")
    program = [sys.executable, CHECKOUT / "packaging/manual.py", folder, "--date", "2026-11-01"]
    subprocess.run(program, env=os.environ | {"PYTHONPATH": str(CHECKOUT)}, check=True)
    return folder


@pytest.fixture(scope="module")
def shown(manual: Path, need: Callable[..., None]) -> Callable[[str], str]:
    """What a reader sees of a page, whose lines are as long as they may be."""
    need("groff-base")

    def show(name: str) -> str:
        groff = ["groff", "-man", "-Tutf8", "-P-cbou", "-ww", "-rLL=10000n", "-rHY=0"]
        done = subprocess.run(
            [*groff, manual / f"{name}.1"], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return done.stdout

    return show


def words_of(text: str) -> str:
    return " ".join(text.split())


class TestPages:
    def test_are_one_for_each_command_and_one_for_all(self, manual: Path) -> None:
        assert {path.stem for path in manual.iterdir()} == set(NAMES)

    @pytest.mark.parametrize("name", NAMES)
    def test_have_every_text_of_help(
        self, shown: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv("COLUMNS", "10000")
        of_help = parser() if name == "gdrpy" else command_parser(name.removeprefix("gdrpy-"))
        page = words_of(shown(name)).lower()
        lines = of_help.format_help().removeprefix("usage: ").splitlines()
        # Columns of help are lines of the page; headings stand there without their colons.
        texts = [text.strip() for line in lines for text in re.split(r"(?<=\S)  +", line)]
        kept = [text.removesuffix(":").lower() for text in texts if text]
        assert [text for text in kept if words_of(text) not in page] == []

    def test_tell_the_version_and_the_day(self, shown: Callable[[str], str]) -> None:
        last = shown("gdrpy-serve").splitlines()[-1]
        assert words_of(last) == f"gdrpy {gdrpy_version()} 2026-11-01 gdrpy-serve(1)"

    def test_are_found_below_the_folder_of_the_command(self, dist) -> None:
        """pip puts data beside bin, where man looks for pages of what PATH names."""
        for wheel in (dist.x86_64, dist.aarch64):
            files = zipfile.ZipFile(wheel).namelist()
            (data,) = {file.partition("/")[0] for file in files if ".data/" in file}
            pages = {file for file in files if file.startswith(f"{data}/data/share/man/man1/")}
            assert pages == {f"{data}/data/share/man/man1/{name}.1" for name in NAMES}
