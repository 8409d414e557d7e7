"""``gdrpy ls``: the regions of the broker that you may read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from gdrpy.cli import broker
from gdrpy.cli.exits import OK
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import approximate_size

if TYPE_CHECKING:
    from gdrpy.broker.client.records import RegionInfo
    from gdrpy.cli.options import Commands


_COLUMNS = ("name", "version", "size", "on", "rights", "owner", "held by")
#: Regions that rich lays out in a blink.
_MANY = 100


def add_parser(commands: Commands) -> None:
    """Add ``ls`` to the command line."""
    parser = broker.add_command(
        commands,
        "ls",
        run,
        summary="the regions that you may read",
        description=(
            "Lists the broker's regions by name, with their version, size, place, rights, owner\n"
            "and how many clients hold them: to read, and to write. Regions that you may not read\n"
            "are not shown."
        ),
        examples=(
            "gdrpy ls\n"
            "gdrpy ls models/                         whose names begin so\n"
            "gdrpy ls --json | jq -r '.regions[].name'"
        ),
        exit_status="0  always, if a broker answers",
    )
    broker.add_prefix(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    """List them."""
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


def regions_table(regions: list[RegionInfo]) -> Table:
    """A line for each region."""
    table = Table()
    table.add_column("name", overflow="fold", min_width=12)
    for column in _COLUMNS[1:]:
        table.add_column(column, no_wrap=True)
    for region in regions:
        table.add_row(*map(Text, _row(region)))
    return table


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
    """The same table, which rich would take seconds to lay out; names are never folded."""
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
