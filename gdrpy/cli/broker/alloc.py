"""``gdrpy alloc``: make a region of the broker's."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gdrpy.cli import broker
from gdrpy.cli.exits import OK
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import parse_size

if TYPE_CHECKING:
    from gdrpy.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add ``alloc`` to the command line."""
    parser = broker.add_command(
        commands,
        "alloc",
        run,
        summary="make a region, or find it with this size",
        description=(
            "Makes a region of the broker's under a name. It stays until its name is taken away\n"
            "and nobody holds it. If there is one of this name, size and device already, that is\n"
            "left as it is. Memory that was never written is zero or what lay there before."
        ),
        examples=(
            "gdrpy alloc kv-cache 20G\n"
            "gdrpy alloc bells 4K --device cpu --mode 0666      in host memory, for everybody"
        ),
        exit_status=(
            "0  it is there\n"
            "1  it is there with another size, or there is no memory, device or right to it"
        ),
    )
    broker.add_name(parser)
    parser.add_argument("size", type=parse_size, metavar="SIZE", help="its size: 4096, 64K, 1M, 2G")
    broker.add_making(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    """Make it."""
    with broker.connect(args) as client:
        client.allocate(args.name, args.size, args.device, mode=args.mode, gpu=False).close()
        region = client.stat(args.name)
    output.line(broker.published(region))
    output.finish(broker.shown(region))
    return OK
