"""The table of releases, and what it says of the interface that the core speaks."""

import subprocess
from pathlib import Path

import pytest

import releases
from build import CORE, compile_c
from gdrpy._core.driver import TESTED_DRIVERS

RELEASES = {release.first: releases.mapping_facts(release.facts) for release in releases.read()}

BEFORE_545 = {
    "size.export_info": "76",
    "at.export_info.gpu_instance": releases.ABSENT,
    "at.export_info.max_objects": "8",
    "at.export_info.metadata": "10",
}
BEFORE_550 = {"size.confidential": "5", "at.confidential.multi_gpu": releases.ABSENT}
BEFORE_555 = {"size.virtualization": "4"}
#: Where a driver differs from rm/abi.h, which is that of the newest. rm/ knows of each.
DIFFERENCES = {
    **{
        first: BEFORE_545 | BEFORE_550 | BEFORE_555
        for first in RELEASES
        if first.startswith("535.")
    },
    "545.23.06": BEFORE_550 | BEFORE_555,
    "550.40.07": BEFORE_555,
}


def c_expression(fact: str) -> str:
    """What rm/abi.h has for a fact of the table."""
    kind, _, name = fact.partition(".")
    if kind == "size":
        return f"sizeof(struct nvrm_{name})"
    if kind == "at":
        return "offsetof(struct nvrm_{}, {})".format(*name.split("."))
    if kind == "nr":
        return f"_IOC_NR(NVRM_IOCTL_{name.upper()})"
    return f"NVRM_{fact.replace('.', '_').upper()}"


def ask_core(directory: Path, *expressions: str) -> list[int]:
    prints = "".join(f'printf("%llu\\n", (unsigned long long)({one}));\n' for one in expressions)
    source = directory / "abi.c"
    source.write_text(
        f'#include <stdio.h>\n#include "rm/abi.h"\nint main(void)\n{{\n{prints}return 0;\n}}\n'
    )
    compile_c(directory / "abi", [source], [f"-I{CORE}"])
    lines = subprocess.run([directory / "abi"], capture_output=True, text=True, check=True).stdout
    return [int(line) for line in lines.splitlines()]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The core's value of each fact, but for those that are the kernel's alone."""
    facts = [fact for fact in RELEASES["535.43.02"] if fact != releases.SURFACE_CASES]
    values = ask_core(tmp_path_factory.mktemp("abi"), *map(c_expression, facts))
    return dict(zip(facts, values, strict=True))


class TestInterface:
    @pytest.mark.parametrize("first", RELEASES)
    def test_of_the_core_is_nvidias_but_for_what_it_knows(
        self, core: dict[str, int], first: str
    ) -> None:
        facts = RELEASES[first]
        differences = {
            fact: facts[fact]
            for fact, value in core.items()
            if facts[fact] == releases.ABSENT or int(facts[fact], 0) != value
        }
        assert differences == DIFFERENCES.get(first, {})

    @pytest.mark.parametrize("first", RELEASES)
    def test_has_the_question_for_a_size_answered(self, core: dict[str, int], first: str) -> None:
        answered = RELEASES[first][releases.SURFACE_CASES].split(",")
        assert str(core["surface_size"]) in answered

    def test_knows_the_older_sizes(self, tmp_path: Path) -> None:
        sizes = ("EXPORT_INFO", "CONFIDENTIAL", "VIRTUALIZATION")
        found = ask_core(tmp_path, *(f"NVRM_{size}_OLD_SIZE" for size in sizes))
        oldest = DIFFERENCES["535.43.02"]
        assert found == [int(oldest[f"size.{size.lower()}"]) for size in sizes]

    def test_was_compared_with_the_drivers_that_are_called_tested(self) -> None:
        table = releases.read()
        assert (table[0].first, table[-1].last) == TESTED_DRIVERS


class TestTable:
    @pytest.mark.parametrize("branch", [535, 545, 550, 555, 560, 565, 570, 575, 580, 590, 595])
    def test_has_the_branch(self, branch: int) -> None:
        assert [first for first in RELEASES if first.startswith(f"{branch}.")] != []

    def test_has_a_column_for_each_run_of_releases_that_agree(self) -> None:
        same, other = {"size.map": "56"}, {"size.map": "64"}
        found = {"550.9": same, "550.10.1": same, "550.11": other, "560.1": other}
        assert releases.columns(found) == [
            ("550.9", "550.10.1", same),
            ("550.11", "550.11", other),
            ("560.1", "560.1", other),
        ]
