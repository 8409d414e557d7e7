"""Saves regions into a new folder: their bytes, metadata, permissions, owners and seals.
'gdrpy restore' brings them back, also into a broker that has lost them, and 'gdrpy serve
--restore' when a broker starts. Without a NAME all regions are saved that you may read.
With a checkpoint its files are saved. Each region is saved as it is while it is copied:
seal it first, or have its writers wait.

examples:
  gdrpy save /backup/2026-11-26              # all regions
  gdrpy save /backup/llama llama tokenizer

exit status:
  0  all are in the folder
  1  the folder exists or cannot be written, or a region does not exist, or you may
     not read it: nothing is saved
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
    parser.add_argument("folder", metavar="FOLDER", help="the folder to make")
    snapshots.add_names(parser, "the regions to save (default: all that you may read)")


def run(args: argparse.Namespace, output: Output) -> int:
    with broker.connect(args) as client, snapshots.copying("save", args, output) as copied:
        copied.names = client.save(args.folder, args.names or None, progress=copied.tell)
    output.prose(f"saved {copied.words()} in {args.folder}")
    output.finish(copied.told())
    return OK
