"""Lists the broker's regions by name, with size, place, how many clients hold them for
reading (r) and for writing (w), permissions, version, and owner. A narrow terminal
shows fewer columns. Regions that you may not read are not listed.

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

from gdrpy.broker.replies import RegionInfo
from gdrpy.cli import broker
from gdrpy.cli.exits import OK
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import approximate_size

#: The first ones are shown in the narrowest terminal.
_COLUMNS = ("name", "size", "on", "held by", "rights", "version", "owner")
#: Cells that a name has at least, or columns are left out from the last.
_NAME_CELLS = 16
#: Rules from left to right and bars: the top, of the titles, below them, of the rows, the bottom;
#: and what stands for the middle of a name.
_LINES = ("┏━┳┓", "┃", "┡━╇┩", "│", "└─┴┘", "…")
_ASCII_LINES = ("+-++", "|", "+-++", "|", "+-++", "~")


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    broker.add_prefix(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with broker.connect(args) as client:
        found = client.list(args.prefix)
        gpus = broker.gpus(client) if output.as_json else {}
    if found and not output.as_json:
        output.text(drawn(found, output))
    elif not found:
        output.line("no regions" + (f" whose names begin with {args.prefix!r}" * bool(args.prefix)))
    output.finish({"regions": [broker.listed(region, gpus) for region in found]})
    return OK


def _row(region: RegionInfo) -> tuple[str, ...]:
    return (
        str(region.name),
        approximate_size(region.nbytes),
        broker.device_words(region.device),
        f"{region.readers} r, {region.writers} w",
        broker.mode_words(region.mode) + " sealed" * region.sealed,
        str(region.version),
        broker.user_words(region.uid),
    )


def drawn(regions: list[RegionInfo], output: Output) -> str:
    """A table with a line for each region that fits stdout's width: long names lose their middle,
    and a narrow terminal gets fewer columns.

    rich would take seconds to lay thousands out, and tenths of one to be imported.
    """
    rows = [_COLUMNS, *map(_row, regions)]
    widths = [max(map(_cells, column)) for column in zip(*rows, strict=True)]
    least = min(widths[0], _NAME_CELLS)
    while len(widths) > 1 and least + _besides_name(widths) > output.width():
        widths.pop()
    widths[0] = min(widths[0], max(least, output.width() - _besides_name(widths)))
    top, title, middle, bar, bottom, mark = _LINES if output.draws() else _ASCII_LINES

    def rule(left: str, line: str, between: str, right: str) -> str:
        return left + between.join(line * (width + 2) for width in widths) + right

    def line(row: tuple[str, ...], bar: str) -> str:
        cells = [
            f" {cell}{' ' * (width - _cells(cell))} "
            for cell, width in zip(row[1:], widths[1:], strict=False)
        ]
        cells.insert(0, f" {_fitted(row[0], widths[0], mark)} ")
        return bar + bar.join(cells) + bar

    drawn = [rule(*top), line(rows[0], title), rule(*middle)]
    return "\n".join([*drawn, *(line(row, bar) for row in rows[1:]), rule(*bottom)])


def _besides_name(widths: list[int]) -> int:
    """Cells that a line has besides the name: the other columns, bars and spaces."""
    return sum(widths[1:]) + 3 * len(widths) + 1


def _cells(text: str) -> int:
    """Cells of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _fitted(text: str, width: int, mark: str) -> str:
    """A text in so many cells: a long name loses its middle, for the ends differ."""
    if (cells := _cells(text)) <= width:
        return text + " " * (width - cells)
    end = width // 2
    start = width - 1 - end
    if text.isascii():
        return text[:start] + mark + text[-end:]
    from rich.cells import set_cell_size

    head, tail = set_cell_size(text, start), set_cell_size(text[::-1], end)[::-1]
    return set_cell_size(head.rstrip() + mark + tail.lstrip(), width)
