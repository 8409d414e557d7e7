"""The version stands in pyproject.toml; everything else that states it agrees."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import gdrpy
from gdrpy.cli.header import gdrpy_version

CHECKOUT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]


def output(*command: str | Path) -> str:
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout


class TestVersion:
    def test_of_the_package_is_the_projects(self) -> None:
        said = {gdrpy.__version__, gdrpy_version(), importlib.metadata.version("gdrpy")}
        assert said == {VERSION}

    def test_of_the_module_is_its_abis_and_the_projects(self, tmp_path: Path) -> None:
        source = (CHECKOUT / "driver/main.c").read_text()
        (abi,) = re.findall(r'^MODULE_VERSION\("(.*)"\);$', source, re.M)
        made = output("driver/packaging/build", "dkms", tmp_path)
        assert made == f"{tmp_path}/gdrdrv-{abi}+gdrpy{VERSION}\n"

    def test_stands_nowhere_in_code(self) -> None:
        """Of this project: results and golden frames tell of what was, others have theirs."""
        files = output("git", "ls-files", "gdrpy", "setup.py", "Makefile", "packaging").split()
        stating = [
            path
            for path in files
            if re.search(rf"\b{re.escape(VERSION)}\b", (CHECKOUT / path).read_text())
        ]
        assert stating == []

    @pytest.mark.parametrize("folder", ["docs", "driver", "README.md", "CONTRIBUTING.md"])
    def test_of_packages_in_the_pages_is_the_projects(self, folder: str) -> None:
        for path in output("git", "ls-files", folder).split():
            text = (CHECKOUT / path).read_bytes().decode(errors="replace")
            named = re.findall(r"\bgdrpy[-=]{0,2}(\d+\.\d+\.\d+)", text)
            assert set(named) <= {VERSION}, path


class TestChangelog:
    def test_begins_with_what_is_unreleased_or_this_version(self) -> None:
        headings = re.findall(r"^## (.*)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.M)
        dated = rf"{re.escape(VERSION)} - \d{{4}}-\d\d-\d\d"
        assert re.fullmatch(rf"Unreleased|{dated}", headings[0])
        assert len(set(headings)) == len(headings)
