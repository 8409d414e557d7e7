"""``gdrpy seal``: make a region immutable."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gdrpy.cli import broker
from gdrpy.cli.exits import OK
from gdrpy.cli.output import Output

if TYPE_CHECKING:
    from gdrpy.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add ``seal`` to the command line."""
    parser = broker.add_command(
        commands,
        "seal",
        run,
        summary="make a region immutable",
        description=(
            "Seals a region: nobody is given it writable any more, for ever. Processes that have\n"
            "it writable already can go on writing until they close it. --digest has the broker\n"
            "compute the SHA-256 of its bytes, once, which takes as long as reading them."
        ),
        examples="gdrpy seal weights\ngdrpy seal weights --digest",
        exit_status="0  it is sealed\n1  there is no such region, or you may not write it",
    )
    broker.add_name(parser)
    parser.add_argument("--digest", action="store_true", help="print the SHA-256 of its bytes")


def run(args: argparse.Namespace, output: Output) -> int:
    """Seal it."""
    with broker.connect(args) as client:
        client.seal(args.name)
        if args.digest:
            with client.get(args.name, gpu=False, readonly=True) as region:
                region.digest()
        info = client.stat(args.name)
    output.line(f"{args.name} is sealed" + (f", SHA-256 {info.sha256}" if info.sha256 else ""))
    output.finish(broker.shown(info))
    return OK
