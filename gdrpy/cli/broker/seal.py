"""Seals a region: the broker never again grants write access to it. Processes that
already have write access keep it until they close the region. With --digest the
broker computes the SHA-256 of its bytes once, which takes as long as reading them.

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

from gdrpy.cli import broker
from gdrpy.cli.exits import OK
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    broker.add_name(parser)
    parser.add_argument("--digest", action="store_true", help="print the SHA-256 of its bytes")


def run(args: argparse.Namespace, output: Output) -> int:
    with broker.connect(args) as client:
        client.seal(args.name)
        if args.digest:
            with client.get(args.name, gpu=False, readonly=True) as region:
                region.digest()
        info = client.stat(args.name)
        told = broker.shown(client, info)
    output.line(f"{args.name} is sealed" + (f", SHA-256 {info.sha256}" if info.sha256 else ""))
    output.finish(told)
    return OK
