"""Lists the broker's regions by name, with version, size, place, permissions, owner, and
how many clients hold them for reading and for writing. Regions that you may not read
are not listed.

examples:
  gdrpy ls
  gdrpy ls models/                         only names that begin with models/
  gdrpy ls --json | jq -r '.regions[].name'

exit status:
  0  a broker answered
  2  wrong usage, or no broker: start one with 'gdrpy serve'
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from gdrpy.broker.messages import RegionInfo
from gdrpy.cli import broker
from gdrpy.cli.exits import OK
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import approximate_size

_COLUMNS = ("name", "version", "size", "on", "rights", "owner", "held by")
_EMPTY = ("",) * (len(_COLUMNS) - 1)
#: Cells that a name has at least, or columns are left out from the last.
_NAME_CELLS = 8
#: Rules from left to right and bars: the top, of the titles, below them, of the rows, the bottom.
_LINES = ("┏━┳┓", "┃", "┡━╇┩", "│", "└─┴┘")
_ASCII_LINES = ("+-++", "|", "+-++", "|", "+-++")


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    broker.add_prefix(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with broker.connect(args) as client:
        found = client.list(args.prefix)
    if found and not output.as_json:
        output.text(drawn(found, output))
    elif not found:
        output.line("no regions" + (f" whose names begin with {args.prefix!r}" * bool(args.prefix)))
    output.finish({"regions": [broker.listed(region) for region in found]})
    return OK


def _row(region: RegionInfo) -> tuple[str, ...]:
    return (
        str(region.name),
        str(region.version),
        approximate_size(region.nbytes),
        broker.device_words(region.device),
        broker.mode_words(region.mode) + " sealed" * region.sealed,
        broker.user_words(region.uid),
        f"{region.readers} r, {region.writers} w",
    )


def drawn(regions: list[RegionInfo], output: Output) -> str:
    """A table with a line for each region that fits stdout's width: long names are folded, and in
    a narrow terminal columns left out.

    rich would take seconds to lay thousands out, and tenths of one to be imported.
    """
    rows = [_COLUMNS, *map(_row, regions)]
    widths = [max(map(_cells, column)) for column in zip(*rows, strict=True)]
    least = min(widths[0], _NAME_CELLS)
    while len(widths) > 1 and least + _besides_name(widths) > output.width():
        widths.pop()
    widths[0] = min(widths[0], max(least, output.width() - _besides_name(widths)))
    top, title, middle, bar, bottom = _LINES if output.draws() else _ASCII_LINES

    def rule(left: str, line: str, between: str, right: str) -> str:
        return left + between.join(line * (width + 2) for width in widths) + right

    def lines(row: tuple[str, ...], bar: str) -> Iterator[str]:
        first, *rest = _folded(row[0], widths[0])
        for line in ((first, *row[1:]), *((part, *_EMPTY) for part in rest)):
            cells = (
                f" {cell}{' ' * (width - _cells(cell))} "
                for cell, width in zip(line, widths, strict=False)
            )
            yield bar + bar.join(cells) + bar

    drawn = [rule(*top), *lines(rows[0], title), rule(*middle)]
    for row in rows[1:]:
        drawn += lines(row, bar)
    return "\n".join([*drawn, rule(*bottom)])


def _besides_name(widths: list[int]) -> int:
    """Cells that a line has besides the name: the other columns, bars and spaces."""
    return sum(widths[1:]) + 3 * len(widths) + 1


def _cells(text: str) -> int:
    """Cells of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _folded(text: str, width: int) -> list[str]:
    """A text in lines of so many cells."""
    if _cells(text) <= width:
        return [text]
    from rich.cells import chop_cells

    return chop_cells(text, width)
