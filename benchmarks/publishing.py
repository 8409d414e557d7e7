"""A result as Markdown: the origin of its figures, and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from broker import MODULE as BROKER
from table import Table
from tables import tables, wrong_data
from words import ABSENT

#: Modules whose figures are valid without a GPU.
SOFTWARE = {BROKER}


class NotPublishable(Exception):
    """The figures must not be published as those of a GPU, for the reason in the message."""


class NoSuchTable(Exception):
    """No table's title begins so; the message lists the titles."""


def markdown(result: dict[str, Any], only: Sequence[str] = ()) -> str:
    """The whole report, or the tables whose titles begin with one of ``only``.

    Raises NotPublishable, and NoSuchTable if no title begins with one of them.
    """
    check(result)
    titles = [table.title for table in tables(result)]
    unknown = [one for one in only if not any(title.startswith(one) for title in titles)]
    if unknown:
        there = "".join(f"\n  {title}" for title in titles)
        raise NoSuchTable(f"no table's title begins with {', '.join(unknown)}; there are:{there}")
    return "\n\n".join(_sections(result, only)) + "\n"


def check(result: dict[str, Any]) -> None:
    """Raise NotPublishable for figures that are not those of a GPU."""
    if result["header"]["simulated"] and set(result["modules"]) - SOFTWARE:
        raise NotPublishable("it was measured on a simulated GPU")
    if result["quick"]:
        raise NotPublishable("it is of a --quick run")
    wrong = wrong_data(result)
    if wrong:
        raise NotPublishable(f"wrong data arrived in {', '.join(wrong)}")


def _sections(result: dict[str, Any], only: Sequence[str]) -> Iterator[str]:
    yield origin(result)
    for table in tables(result):
        if not only or table.title.startswith(tuple(only)):
            yield as_markdown(table)
    for one in result["absent"]:
        yield f"Not measured: {one['what']} ({one['reason']})."


def origin(result: dict[str, Any]) -> str:
    """The origin that every figure must travel with."""
    header = result["header"]
    commit = header["commit"][:12] if header["commit"] else "unknown"
    if header["dirty"]:
        commit += ", with local changes"
    counts = [one["count"] for one in _single(result)]
    counts += [rounds for one in result.get("sweeps", ()) for rounds in one["rounds"]]
    link = f", PCIe {header['pcie_link']}" if header["pcie_link"] else ""
    return (
        f"`{header['command']}`, {header['date'][:10]}, commit {commit}: {header['gpu']}{link}, "
        f"driver {header['nvidia_driver']}, CUDA {header['cuda_driver']}, backend "
        f"`{header['backend']}`; {header['cpu']}, {header['cpus']} CPUs, Linux "
        f"{header['kernel']}; Python {header['python']}, {_libraries(header)}. "
        f"{min(counts)} to {max(counts)} samples a figure; {_verified(result)} figures with "
        f"verified data; the others move no data."
    )


def _single(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures that are not of sweeps."""
    return [*result["measurements"], *result.get("distributions", ())]


def _verified(result: dict[str, Any]) -> str:
    """The number of figures with verified data, of all."""
    verified = [one["verified"] is True for one in _single(result)]
    for sweep in result.get("sweeps", ()):
        for way, medians in sweep["median"].items():
            figures = len(medians) - medians.count(None)
            verified += [way not in sweep["unverified"]] * figures
    return f"{sum(verified)} of {len(verified)}"


def _libraries(header: dict[str, Any]) -> str:
    names = ("numpy", "cuda_bindings", "torch", "cupy", "numba_cuda")
    found = [f"{name.replace('_', '-')} {header[name]}" for name in names if header.get(name)]
    return ", ".join([gdrpy_words(header), *found])


def gdrpy_words(header: dict[str, Any]) -> str:
    """The version of gdrpy. Checkouts had 0.1.0 until 0.2.0, the first release, was prepared."""
    version = header["gdrpy"]
    return f"gdrpy {version}" + " (not released)" * (version == "0.1.0")


def as_markdown(table: Table) -> str:
    """A table and its title; columns of figures are set to the right."""
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    rule = ["---:" if all(map(_begins_with_a_figure, cells)) else "---" for cells in columns[1:]]
    rule.insert(0, "---")
    lines = (table.columns, rule, *table.rows)
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{table.title}**\n\n{rows}"


def _begins_with_a_figure(cell: str) -> bool:
    return cell == ABSENT or cell.removeprefix("-")[:1].isdigit()
