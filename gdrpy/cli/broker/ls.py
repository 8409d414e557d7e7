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

from rich.cells import cell_len

from gdrpy.broker.client.records import RegionInfo
from gdrpy.cli import broker
from gdrpy.cli.exits import OK
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output, Renderable, table
from gdrpy.cli.sizes import approximate_size

_COLUMNS = ("name", "version", "size", "on", "rights", "owner", "held by")
#: The most regions that rich lays out without a noticeable wait.
_MANY = 100


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    broker.add_prefix(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with broker.connect(args) as client:
        found = client.list(args.prefix)
    if len(found) > _MANY and output.draws() and not output.as_json:
        output.text(_drawn(found))
    elif found:
        output.show(regions_table(found))
    else:
        output.line("no regions" + (f" whose names begin with {args.prefix!r}" * bool(args.prefix)))
    output.finish({"regions": [broker.listed(region) for region in found]})
    return OK


def regions_table(regions: list[RegionInfo]) -> Renderable:
    """A line for each region."""
    return table(_COLUMNS, map(_row, regions), whole=_COLUMNS[1:])


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


def _drawn(regions: list[RegionInfo]) -> str:
    """The table of many regions: rich would take seconds. Names are never folded."""
    rows = [_COLUMNS, *map(_row, regions)]
    sizes = [[cell_len(cell) for cell in row] for row in rows]
    widths = [max(column) for column in zip(*sizes, strict=True)]

    def rule(left: str, line: str, between: str, right: str) -> str:
        return left + between.join(line * (width + 2) for width in widths) + right

    def drawn(row: tuple[str, ...], taken: list[int], bar: str) -> str:
        cells = (
            f" {cell}{' ' * (width - size)} "
            for cell, size, width in zip(row, taken, widths, strict=True)
        )
        return bar + bar.join(cells) + bar

    lines = [rule("┏", "━", "┳", "┓"), drawn(rows[0], sizes[0], "┃"), rule("┡", "━", "╇", "┩")]
    lines += [drawn(row, taken, "│") for row, taken in zip(rows[1:], sizes[1:], strict=True)]
    return "\n".join([*lines, rule("└", "─", "┴", "┘")])
