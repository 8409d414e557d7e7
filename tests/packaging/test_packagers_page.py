"""What docs/packagers.md and docs/stability.md say of numbers, names and files holds."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from gdrpy._core.driver import TESTED_DRIVERS
from gdrpy.broker.protocol import VERSION as PROTOCOL
from gdrpy.cli.libgdrapi import SHARED_OBJECT

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs/packagers.md").read_text()
STABILITY = (CHECKOUT / "docs/stability.md").read_text()


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class TestLibrary:
    def test_has_the_soname_the_functions_and_the_version(self) -> None:
        soname = re.search(r"soname: \[(.*)\]", output("readelf", "-d", SHARED_OBJECT))[1]
        functions = output("nm", "-D", "--defined-only", SHARED_OBJECT).splitlines()
        header = (CHECKOUT / "gdrpy/include/gdrapi.h").read_text()
        numbers = re.findall(r"^#define GDR_API_(?:MAJOR|MINOR)_VERSION (\d+)$", header, re.M)
        version = ".".join(numbers)
        assert f"| soname | `{soname}`; the file is `libgdrapi.so.{version}` |" in PAGE
        assert f"GDRCopy {version}: {len(functions)} functions," in PAGE
        assert f"pkg-config --exists 'gdrapi >= {version}'" in PAGE

    def test_was_compared_with_the_drivers_that_the_core_names(self) -> None:
        assert "sources from {} to {}.".format(*TESTED_DRIVERS) in PAGE


class TestFiles:
    def test_are_where_the_page_says(self) -> None:
        named = re.findall(r"\b(?:packaging/\w+|gdrpy/[\w/]+Makefile)\b", PAGE)
        assert len(set(named)) == 2
        assert [path for path in named if not (CHECKOUT / path).is_file()] == []
        recipes = re.findall(r"dist/recipes/([\w./]+\w)", PAGE)
        assert recipes == ["conda/recipe.yaml", "spack/spack_repo/gdrpy"]
        assert [path for path in recipes if not (CHECKOUT / "packaging" / path).exists()] == []


class TestStability:
    def test_names_the_protocols_version(self) -> None:
        assert f"the number {PROTOCOL} in the greeting" in STABILITY
