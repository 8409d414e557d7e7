"""Deletes the names of regions. Processes that hold such a region keep it; its memory
returns to the GPU when the last of them closes it.

examples:
  gdrpy rm table
  gdrpy rm kv-0 kv-1 kv-2

exit status:
  0  all are deleted
  1  at least one does not exist, or you may not delete it
  2  wrong usage, or no broker: start one with 'gdrpy serve'
"""

from __future__ import annotations

import argparse

from gdrpy.broker.client.arguments import as_name
from gdrpy.cli import broker, options
from gdrpy.cli.exits import FAILED, OK, words_of
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.errors import NotFound, PermissionDenied


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    parser.add_argument(
        "names", nargs="+", type=options.checked(as_name), metavar="NAME", help="a region's name"
    )


def run(args: argparse.Namespace, output: Output) -> int:
    deleted: list[str] = []
    errors: dict[str, str] = {}
    with broker.connect(args) as client:
        for name in args.names:
            try:
                client.delete(name)
            except (NotFound, PermissionDenied) as error:
                errors[name] = _typed(words_of(error))
                output.error(errors[name])
            else:
                output.line(f"deleted {name}")
                deleted.append(name)
    output.finish({"deleted": deleted, "errors": errors})
    return FAILED if errors else OK


def _typed(words: str) -> str:
    """What an error of Broker.delete() says, of the command that was typed."""
    return words.replace("delete: ", "rm: ", 1) if words.startswith("delete: ") else words
