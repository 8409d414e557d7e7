"""The recipes for conda and Spack name the source distribution, and need what the project needs."""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from pathlib import Path

import pytest
import yaml

CHECKOUT = Path(__file__).parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]


def needed() -> dict[str, str]:
    """The packages that the project needs, with the lower bound for the oldest Python."""
    found: dict[str, str] = {}
    for line in PROJECT["dependencies"]:
        name, bound = line.partition(";")[0].strip().split(">=")
        found.setdefault(name, bound)
    return found


@pytest.fixture(scope="module")
def recipes(dist) -> Path:
    """The folder of the recipes that are filled in when a release is built."""
    return dist.sdist.parent / "recipes"


@pytest.fixture(scope="module")
def conda(recipes: Path) -> dict:
    return yaml.safe_load((recipes / "conda/recipe.yaml").read_text())


def calls_in(path: Path) -> list[tuple[str, list, dict]]:
    """The directives of a Spack package: name, arguments, and arguments by name."""
    (package,) = (one for one in ast.parse(path.read_text()).body if isinstance(one, ast.ClassDef))
    calls = [one.value for one in package.body if isinstance(one, ast.Expr)]
    return [
        (
            call.func.id,
            [ast.literal_eval(one) for one in call.args],
            {one.arg: ast.literal_eval(one.value) for one in call.keywords},
        )
        for call in calls
        if isinstance(call, ast.Call)
    ]


class TestSource:
    def test_is_this_version_and_its_checksum(self, dist, recipes: Path, conda: dict) -> None:
        checksum = hashlib.sha256(dist.sdist.read_bytes()).hexdigest()
        assert conda["context"] == {"version": PROJECT["version"]}
        assert conda["source"]["sha256"] == checksum
        packages = sorted(recipes.glob("spack/spack_repo/gdrpy/packages/*/package.py"))
        assert [path.parent.name for path in packages] == ["libgdrapi", "py_gdrpy"]
        for path in packages:
            versions = [call[1:] for call in calls_in(path) if call[0] == "version"]
            assert versions == [([PROJECT["version"]], {"sha256": checksum})]

    def test_leaves_nothing_to_fill_in(self, recipes: Path) -> None:
        texts = [path.read_text() for path in recipes.rglob("*.*") if path.is_file()]
        assert len(texts) == 4
        assert [found for text in texts for found in re.findall(r"@[A-Z0-9]+@", text)] == []


class TestRequirements:
    def test_of_conda_are_the_projects(self, conda: dict) -> None:
        (output,) = (one for one in conda["outputs"] if one["package"]["name"] == "gdrpy")
        run = dict(line.split(" >=") for line in output["requirements"]["run"])
        # One bound for all Pythons there: that of the newest.
        assert run == needed() | {"python": "3.11", "cffi": "2"}

    def test_of_spack_are_the_projects(self, recipes: Path) -> None:
        calls = calls_in(recipes / "spack/spack_repo/gdrpy/packages/py_gdrpy/package.py")
        specs = [
            call[1][0] for call in calls if call[0] == "depends_on" and "run" in call[2]["type"]
        ]
        assert {spec.rstrip(":") for spec in specs} == {
            "python@3.11",
            *(f"py-{name}@{bound}" for name, bound in needed().items()),
        }

    def test_of_the_build_are_the_projects(self, recipes: Path, conda: dict) -> None:
        build = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["build-system"]
        bound = next(line for line in build["requires"] if line.startswith("setuptools"))
        (output,) = (one for one in conda["outputs"] if one["package"]["name"] == "gdrpy")
        assert bound.replace(">=", " >=") in output["requirements"]["host"]
        calls = calls_in(recipes / "spack/spack_repo/gdrpy/packages/py_gdrpy/package.py")
        assert f"py-{bound.replace('>=', '@')}:" in [call[1][0] for call in calls]


class TestLibrary:
    def test_is_built_by_its_own_makefile(self, recipes: Path, conda: dict) -> None:
        makefile = "gdrpy/_core/gdrapi/Makefile"
        assert (CHECKOUT / makefile).exists()
        (output,) = (one for one in conda["outputs"] if one["package"]["name"] == "libgdrapi")
        assert output["build"]["script"] == f"make -f {makefile} install PREFIX=$PREFIX"
        package = (recipes / "spack/spack_repo/gdrpy/packages/libgdrapi/package.py").read_text()
        assert f'makefile = "{makefile}"' in package
