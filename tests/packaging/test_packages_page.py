"""docs/packages.md, the page on Kubernetes, and the files of packaging/ name what there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from gdrpy.cli import main

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs/packages.md").read_text()
KUBERNETES = (CHECKOUT / "docs/howto/kubernetes.md").read_text()
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
FOR_DEVELOPERS = {"test", "ecosystem", "docs", "package", "lint"}
PACKAGING = [
    path for path in (CHECKOUT / "packaging").rglob("*") if path.is_file() and path.suffix != ".pyc"
]


def commands_in(text: str) -> set[str]:
    """The commands of gdrpy that a reader is told to run, or a container runs."""
    shell = re.findall(r"(?:^\$ |gdrpy |`)gdrpy ([a-z]+)\b", text, re.MULTILINE)
    return {*shell, *re.findall(r"\[(?:CMD, )?gdrpy, (\w+)", text)}


class TestPage:
    def test_names_files_that_there_are(self) -> None:
        named = set(re.findall(r"\b(?:packaging|tools)/[\w./-]+\w", PAGE + KUBERNETES))
        assert len(named) > 5
        assert [path for path in named if not (CHECKOUT / path).exists()] == []

    def test_names_all_that_a_base_install_pulls(self) -> None:
        names = [re.split(r"[<>=]", line)[0] for line in PROJECT["dependencies"]]
        (told,) = re.findall(r"^With it come (.*?)\. ", PAGE, re.MULTILINE | re.DOTALL)
        assert [name for name in names if name not in told] == []

    def test_names_the_extras_for_users(self) -> None:
        extras = set(PROJECT["optional-dependencies"]) - FOR_DEVELOPERS
        assert set(re.findall(r"^\| `gdrpy\[(\w+)\]` \|", PAGE, re.MULTILINE)) == extras
        assert extras == {"all", "cupy", "numba", "plot", "ray", "torch", "transformers", "vllm"}

    def test_names_targets_that_make_has(self) -> None:
        targets = re.findall(r"^([\w-]+(?: [\w-]+)*):", (CHECKOUT / "Makefile").read_text(), re.M)
        named = set(re.findall(r"(?:`|^\$ )make (\w+)", PAGE, re.MULTILINE))
        assert {"dist", "install"} <= named <= set(" ".join(targets).split())


class TestRequirements:
    @pytest.mark.parametrize("extra", [None, *PROJECT["optional-dependencies"]])
    def test_have_lower_bounds_alone(self, extra: str | None) -> None:
        listed = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
        bounds = [line.partition(";")[0] for line in listed if not line.startswith("gdrpy[")]
        assert [line for line in bounds if not re.fullmatch(r"[\w-]+(>=[\d.]+)? *", line)] == []

    def test_all_has_every_extra_for_users_but_vllm_which_needs_a_torch_of_its_own(self) -> None:
        (line,) = PROJECT["optional-dependencies"]["all"]
        named = set(re.split(r"[\[\],]", line)) - {"gdrpy", ""}
        assert named == set(PROJECT["optional-dependencies"]) - FOR_DEVELOPERS - {"all", "vllm"}


class TestCommands:
    @pytest.mark.parametrize("text", [PAGE, KUBERNETES, *(path.read_text() for path in PACKAGING)])
    def test_are_gdrpys(self, text: str, capsys: pytest.CaptureFixture[str]) -> None:
        for command in commands_in(text):
            with pytest.raises(SystemExit) as ended:
                main([command, "--help"])
            assert ended.value.code == 0, command
