"""Shows a region: its size and place, version, owner and permissions, whether it is
sealed, its digest if one was computed, its metadata, and the processes that hold it.

examples:
  gdrpy stat weights
  gdrpy stat weights --json | jq '.holders[].pid'

exit status:
  0  the region exists
  1  it does not exist, or you may not read it
  2  wrong usage, or no broker: start one with 'gdrpy serve'
"""

from __future__ import annotations

import argparse

from gdrpy.broker.replies import Holder, RegionInfo
from gdrpy.cli import broker
from gdrpy.cli.exits import OK
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output, table
from gdrpy.cli.sizes import counted, format_size


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    broker.add_name(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with broker.connect(args) as client:
        region = client.stat(args.name)
        told = broker.shown(client, region)
    for name, value in _lines(region):
        output.line(f"{name:10}{value}")
    if region.holders:
        columns = ("process", "user", "writes", "GPU view", "times")
        output.show(table(columns, map(_holder, region.holders)))
    output.finish(told)
    return OK


def _lines(region: RegionInfo) -> list[tuple[str, str]]:
    place = broker.device_words(region.device)
    if region.uuid:
        place += f" ({region.uuid})"
    owner = f"{broker.user_words(region.uid)} ({region.uid}), group {region.gid}"
    lines = [
        ("name", str(region.name)),
        ("version", f"{region.version}, region {region.region}"),
        ("size", f"{format_size(region.nbytes)}, takes {format_size(region.size)}"),
        ("on", place),
        ("owner", owner),
        ("rights", f"{broker.mode_words(region.mode)} ({region.mode:04o})"),
        ("sealed", "yes" if region.sealed else "no"),
    ]
    if region.sha256:
        lines.append(("SHA-256", region.sha256))
    if region.metadata:
        lines.append(("metadata", broker.metadata_words(region.metadata)))
    holders = f"{counted(region.readers, 'reader')}, {counted(region.writers, 'writer')}"
    return [*lines, ("held by", holders)]


def _holder(holder: Holder) -> tuple[str, ...]:
    return (
        str(holder.pid),
        broker.user_words(holder.uid),
        "yes" if holder.writable else "no",
        "yes" if holder.gpu else "no",
        str(holder.count),
    )
