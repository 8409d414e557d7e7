"""``gdrpy rm``: take the names of regions away."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gdrpy.cli import broker
from gdrpy.cli.exits import FAILED, OK, words_of
from gdrpy.cli.output import Output
from gdrpy.errors import NotFound, PermissionDenied

if TYPE_CHECKING:
    from gdrpy.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add ``rm`` to the command line."""
    parser = broker.add_command(
        commands,
        "rm",
        run,
        summary="delete regions",
        description=(
            "Takes the names of regions away. Who holds such a region keeps it; its memory goes\n"
            "back to the GPU when the last one is gone."
        ),
        examples="gdrpy rm table\ngdrpy rm kv-0 kv-1 kv-2",
        exit_status="0  all are deleted\n1  one at least is not there, or not yours to delete",
    )
    parser.add_argument(
        "names", nargs="+", type=broker.region_name, metavar="NAME", help="a region's name"
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Delete each; one that cannot be keeps no other one from it."""
    deleted: list[str] = []
    errors: dict[str, str] = {}
    with broker.connect(args) as client:
        for name in args.names:
            try:
                client.delete(name)
            except (NotFound, PermissionDenied) as error:
                errors[name] = words_of(error)
                output.error(errors[name])
            else:
                output.line(f"deleted {name}")
                deleted.append(name)
    output.finish({"deleted": deleted, "errors": errors})
    return FAILED if errors else OK
