"""Seals a region: the broker never again grants write access to it. Processes that
already have write access keep it until they close the region. All files of a checkpoint
are sealed. With --digest the broker computes the SHA-256 of each region's bytes
once, which takes as long as reading them.

examples:
  gdrpy seal weights
  gdrpy seal weights --digest

exit status:
  0  the region is sealed
  1  it does not exist, or you may not write it
  2  wrong usage, or no broker: start one with 'gdrpy serve'
"""

from __future__ import annotations

import argparse

from gdrpy.broker.checkpoint import is_checkpoint
from gdrpy.cli import broker
from gdrpy.cli.broker.checkpoints import Checkpoints
from gdrpy.cli.exits import OK
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    broker.add_name(parser)
    parser.add_argument("--digest", action="store_true", help="print the SHA-256 of its bytes")


def run(args: argparse.Namespace, output: Output) -> int:
    with broker.connect(args) as client:
        region = client.stat(args.name)
        files = Checkpoints(client).files(region) if is_checkpoint(region.metadata) else []
        client.seal(args.name)
        for name in (*files, args.name) if args.digest else ():
            with client.get(name, gpu=False, readonly=True) as held:
                output.line(f"{name}: SHA-256 {held.digest()}")
        told = broker.shown(client, client.stat(args.name))
        told["files"] = [broker.shown(client, client.stat(name)) for name in files]
    sealed = sum(file["sealed"] for file in told["files"])
    output.line(f"{args.name} is sealed" + (f", and its {sealed} files" if sealed else ""))
    output.finish(told)
    return OK
