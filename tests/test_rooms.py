"""The rooms of the package: upper ones import lower ones, and nothing is imported in a function."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import gdrpy

PACKAGE = Path(gdrpy.__file__).parent

#: The rooms from the ground up; those of one floor do not know each other.
FLOORS = (
    {"errors", "sim"},
    {"_core"},
    {"common"},
    {"cuda"},
    {"copies", "memory"},
    {"arrays"},
    {"region", "safetensors"},
    {"arena", "broker", "pins"},
    {"channel"},
    {"aio", "cupy", "rmm", "torch"},
    {"lmcache", "ray", "transformers", "vllm"},
    {"__init__"},
    {"cli"},
    {"__main__"},
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

#: What may be imported inside a function: other libraries, and large ones of Python's own, that not
#: all processes pay for; names that two packages import when they are first asked for; the command
#: line, and what it loads for one of its commands.
LIBRARIES = {
    "cuda",
    "distributed",
    "huggingface_hub",
    "matplotlib",
    "ml_dtypes",
    "numpy",
    "ray",
    "vllm",
}
STANDARD = {"asyncio", "concurrent", "ctypes", "difflib", "json"}
ELSEWHERE = STANDARD | LIBRARIES
IMPORTERS = ("__import__", "import_module")
LATER = {"gdrpy/__init__.py", "gdrpy/__main__.py", "gdrpy/broker/__init__.py", "gdrpy/cli"}


def modules() -> list[Path]:
    """Every module, compiled or not, by its path in the package."""
    return sorted(path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The modules that a file imports, and whether it does so inside a function."""
    tree = ast.parse((PACKAGE.parent / path).read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [
                f"{node.module}.{alias.name}" if is_package(str(node.module)) else str(node.module)
                for alias in node.names
            ]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(IMPORTERS):
            names = [ast.unparse(node.args[0]).strip("'")]
        else:
            continue
        for name in names:
            yield name, id(node) in inside


def is_package(name: str) -> bool:
    return name.startswith("gdrpy") and (PACKAGE.parent / name.replace(".", "/")).is_dir()


def room_of(name: str) -> str | None:
    """The room of a module; None for other projects'."""
    words = name.split(".")
    if words[0] != "gdrpy":
        return None
    return words[1] if words[1:] and words[1] in FLOOR else "__init__"


def room_of_file(path: Path) -> str:
    return path.with_suffix("").parts[1]


class TestRooms:
    def test_are_all_on_a_floor(self):
        folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
        files = {path.stem for path in PACKAGE.glob("*.py")}
        assert folders | files == set(FLOOR)

    @pytest.mark.parametrize("path", modules(), ids=str)
    def test_import_lower_ones_alone(self, path):
        here = room_of_file(path)
        for name, _ in imports(path):
            there = room_of(name)
            if there not in (None, here):
                assert FLOOR[there] < FLOOR[here], f"{path} imports {name}"

    @pytest.mark.parametrize("path", modules(), ids=str)
    def test_import_nothing_inside_a_function(self, path):
        if any(Path(late) in (path, *path.parents) for late in LATER):
            return
        late = {name for name, inside in imports(path) if inside}
        assert {name.partition(".")[0] for name in late} <= ELSEWHERE

    def test_have_no_circle_inside_them(self):
        needs = {
            ".".join(path.with_suffix("").parts): {name for name, _ in imports(path)}
            for path in modules()
        }
        tuple(TopologicalSorter(needs).static_order())  # raises CycleError


class TestKernelModule:
    def test_has_files_that_call_lower_ones_alone(self, checkout):
        """Those that the header declares further up."""
        header = (checkout / "driver/gdrdrv.h").read_text()
        _, *parts = re.split(r"^/\* (\w+\.c) \*/$", header, flags=re.MULTILINE)
        files, declarations = parts[::2], parts[1::2]
        declared = [set(re.findall(r"\b(gdrdrv_\w+)[(;]", part)) for part in declarations]
        assert {*files, "main.c", "trace.c"} == {
            path.name for path in (checkout / "driver").glob("*.c")
        }
        for number, file in enumerate(files):
            used = set(re.findall(r"\bgdrdrv_\w+", (checkout / "driver" / file).read_text()))
            assert used.isdisjoint(set().union(*declared[number + 1 :])), file
