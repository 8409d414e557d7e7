"""Runs the tests of every path between array libraries and gdrpy, and keeps the outcome as a table.

On a machine with a GPU those of the CUDA libraries (tests/hardware/test_matrix_gpu.py), else those
of the host's on the simulated GPU (tests/ecosystem/test_matrix_simulated.py).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import machine
from gdrpy import cuda
from publishing import as_markdown, gdrpy_words
from results import FORMAT, add_arguments, save
from table import Table
from words import ABSENT

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

import ways  # noqa: E402

#: The classes of tests, and the column of each in the table.
ASPECTS = {
    "TestMemory": "memory",
    "TestStream": "streams",
    "TestLifetime": "lifetime",
    "TestUncounted": "lifetime",
    "TestReadOnly": "read-only memory",
    "TestSource": "memory",
}
COLUMNS = ("memory", "streams", "lifetime", "read-only memory")
LIBRARIES = ("numpy", "torch", "cupy", "cupy-cuda13x", "numba-cuda", "jax", "jaxlib", "ml-dtypes")
FAILED = "FAILED"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if every test passed."""
    parser = argparse.ArgumentParser(prog="benchmarks/ecosystem.py", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--table", metavar="FILE", type=Path, help="print that result as Markdown")
    options = parser.parse_args(arguments)
    if options.table:
        print(markdown(json.loads(options.table.read_text())), end="")
        return 0
    outcomes = run_tests()
    result = {
        "format": FORMAT,
        "header": machine.describe((), options.commit, "benchmarks/ecosystem.py"),
        "modules": ["ecosystem"],
        "quick": False,
        "libraries": versions(),
        "ways": rows(outcomes),
    }
    path = save(result, options.output)
    print(markdown(result), end="")
    print(path)
    return int(not outcomes or any(FAILED in of_way.values() for of_way in outcomes.values()))


def run_tests() -> dict[str, dict[str, str]]:
    """The outcome of the tests by way and aspect: "passed", FAILED or "not installed"."""
    where = (
        "ecosystem/test_matrix_simulated.py" if cuda.simulated() else "hardware/test_matrix_gpu.py"
    )
    marks = () if cuda.simulated() else ("-m", "gpu")
    with tempfile.NamedTemporaryFile(suffix=".xml") as file:
        report = f"--junitxml={file.name}"
        command = (sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *marks)
        subprocess.run((*command, report, f"tests/{where}"), cwd=ROOT, check=False)
        return outcomes(ElementTree.parse(file.name).getroot())


def outcomes(report: ElementTree.Element) -> dict[str, dict[str, str]]:
    """The same as :func:`run_tests`, from pytest's report in XML."""
    found: dict[str, dict[str, str]] = {}
    for case in report.iter("testcase"):
        aspect = ASPECTS[case.attrib["classname"].rpartition(".")[2]]
        way = case.attrib["name"].partition("[")[2].removesuffix("]")
        of_way = found.setdefault(way, {})
        if case.find("failure") is not None or case.find("error") is not None:
            of_way[aspect] = FAILED
        elif case.find("skipped") is not None:
            of_way[aspect] = "not installed"
        else:
            of_way.setdefault(aspect, "passed")
    return found


def rows(outcomes: dict[str, dict[str, str]]) -> list[dict[str, str]]:
    """The behaviour of each way, as the tests showed it."""
    known = {str(way): way for way in (ways.SIMULATED if cuda.simulated() else ways.ON_A_GPU)}
    return [
        {"way": name}
        | {
            aspect: (words(known.get(name), aspect) if outcome == "passed" else outcome)
            for aspect, outcome in of_way.items()
        }
        for name, of_way in sorted(outcomes.items())
    ]


def words(way: ways.Way | None, aspect: str) -> str:
    """The behaviour of a way whose tests passed; None is a source of copies."""
    if way is None:
        return {"memory": "copied", "streams": "waited for"}[aspect]
    if aspect == "memory":
        on_host = ways.GPU if cuda.simulated() else ways.CPU
        return on_host if way.memory == ways.HOST else str(way.memory)
    if aspect == "streams":
        return "in order"
    if aspect == "lifetime":
        return way.lifetime
    return str(way.readonly)


def versions() -> dict[str, str]:
    """The versions of the installed libraries."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def markdown(result: dict[str, Any]) -> str:
    """A result as a table, with the machine and the versions."""
    header = result["header"]
    commit = header["commit"][:12] if header["commit"] else "unknown"
    if header["dirty"]:
        commit += ", with local changes"
    libraries = ", ".join(f"{name} {version}" for name, version in result["libraries"].items())
    columns = [name for name in COLUMNS if any(name in row for row in result["ways"])]
    table = Table(
        f"On {'the simulated GPU' if header['simulated'] else header['gpu']}",
        ["direction", *columns],
        [
            [f"`{row['way']}`", *(row.get(column, ABSENT) for column in columns)]
            for row in result["ways"]
        ],
    )
    return (
        f"{as_markdown(table)}\n\n"
        f"`{header['command']}`, {header['date'][:10]}, commit {commit}: driver "
        f"{header['nvidia_driver'] or 'none'}, Python {header['python']}, {gdrpy_words(header)}, "
        f"{libraries}.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
