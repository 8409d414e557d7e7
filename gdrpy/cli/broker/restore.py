"""Publishes the regions that 'gdrpy save' saved in a folder, after their digests were
compared. Up to 256 regions are published in one step: other processes find all of them or
none. They replace regions of their names. Root and the broker's user restore the owners;
other users own what they restore.

examples:
  gdrpy restore /backup/2026-11-26
  gdrpy restore /backup/2026-11-26 llama      # this checkpoint, with its files
  gdrpy restore /backup/llama --missing       # only what has no region of its name
  gdrpy restore /backup/llama --device 1      # on another GPU

exit status:
  0  the regions are published
  1  they are not: memory or permission is missing, or the folder holds no snapshot, or
     has changed since it was saved
  2  wrong usage, or no broker: start one with 'gdrpy serve'
"""

from __future__ import annotations

import argparse

from gdrpy.cli import broker
from gdrpy.cli.broker import snapshots
from gdrpy.cli.exits import OK
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    parser.add_argument("folder", metavar="FOLDER", help="a folder that 'gdrpy save' made")
    snapshots.add_names(parser, "the regions to restore (default: all of them)")
    broker.add_device(parser, None)
    about = "leave regions alone whose names exist"
    parser.add_argument("--missing", action="store_true", help=about)


def run(args: argparse.Namespace, output: Output) -> int:
    with broker.connect(args) as client, snapshots.copying("restore", args, output) as copied:
        options = {"device": args.device, "missing": args.missing}
        copied.names = client.restore(
            args.folder, args.names or None, progress=copied.tell, **options
        )
    output.prose(f"restored {copied.words()} from {args.folder}")
    output.finish(copied.told())
    return OK
