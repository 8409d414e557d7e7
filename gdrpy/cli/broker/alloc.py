"""Makes a region of the broker under a name. It stays until its name is deleted and
no process holds it any more. If a region of this name, size and device exists, it
is left unchanged. New memory is zero or holds old bytes.

examples:
  gdrpy alloc kv-cache 20G
  gdrpy alloc bells 4K --device cpu --mode 0666      # in host memory, for every user

exit status:
  0  the region exists
  1  it exists with another size, or memory, device or permission is missing
  2  wrong usage, or no broker: start one with 'gdrpy serve'
"""

from __future__ import annotations

import argparse

from gdrpy.cli import broker
from gdrpy.cli.exits import OK
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import parse_size


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    broker.add_name(parser)
    parser.add_argument("size", type=parse_size, metavar="SIZE", help="its size: 4096, 64K, 1M, 2G")
    broker.add_new_region(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    with broker.connect(args) as client:
        client.allocate(args.name, args.size, args.device, mode=args.mode, gpu=False).close()
        region = client.stat(args.name)
        told = broker.shown(client, region)
    output.prose(broker.published(region))
    output.finish(told)
    return OK
