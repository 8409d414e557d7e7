"""Lists the broker's regions by name, with size, how many clients hold them for reading
(r) and for writing (w) or have them asleep, place, permissions, version, and owner. A
narrow terminal shows fewer columns. While all clients of a region sleep, its copy in host
memory tells of them. Regions that you may not read are not listed. A checkpoint is shown
with the bytes and holders of all of its files, which are listed as well. With --json these
sums are its "checkpoint", and the bytes of all regions add up to the memory in use.

examples:
  gdrpy ls
  gdrpy ls models/                         # only names that begin with models/
  gdrpy ls --json | jq -r '.regions[].name'

exit status:
  0  a broker answered
  2  wrong usage, or no broker: start one with 'gdrpy serve'
"""

from __future__ import annotations

import argparse

from gdrpy.broker.replies import RegionInfo
from gdrpy.cli import broker
from gdrpy.cli.broker import checkpoints, listing
from gdrpy.cli.broker.checkpoints import Checkpoints
from gdrpy.cli.exits import OK
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import approximate_size

#: The first ones are shown in the narrowest terminal.
_COLUMNS = ("name", "size", "held by", "on", "rights", "version", "owner")


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    broker.add_prefix(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with broker.connect(args) as client:
        regions = client.list(args.prefix)
        found = Checkpoints(client).whole(regions)
        gpus = broker.gpus(client) if output.as_json else {}
    if found and not output.as_json:
        output.text(drawn(found, output))
    elif not found:
        output.line("no regions" + _whose(args.prefix))
    both = zip(regions, found, strict=True)
    output.finish({"regions": [checkpoints.told(*one, gpus) for one in both]})
    return OK


def _whose(prefix: str) -> str:
    hint = " (not a pattern: leave '*' out)" if "*" in prefix else ""
    return f" whose names begin with {prefix!r}{hint}" if prefix else ""


def _row(region: RegionInfo) -> dict[str, str]:
    held = f"{region.readers} r, {region.writers} w"
    if region.asleep:
        counts = {"r": region.readers, "w": region.writers, "asleep": region.asleep}
        held = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return {
        "name": str(region.name),
        "size": approximate_size(region.nbytes),
        "held by": held,
        "on": broker.device_words(region.device),
        "rights": broker.mode_words(region.mode) + " sealed" * region.sealed,
        "version": str(region.version),
        "owner": broker.user_words(region.uid),
    }


def drawn(regions: list[RegionInfo], output: Output, columns: tuple[str, ...] = _COLUMNS) -> str:
    """A table with a line for each region: a narrow terminal gets fewer columns."""
    rows = [tuple(map(row.__getitem__, columns)) for row in map(_row, regions)]
    return listing.drawn([columns, *rows], output)
