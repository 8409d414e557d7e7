"""Prints what a command does, its arguments and its exit statuses, as the command does with
--help; without COMMAND the list of all commands.

examples:
  gdrpy help
  gdrpy help load

exit status:
  0  it was printed
  2  there is no such command
"""

from __future__ import annotations

import argparse

from gdrpy.cli import COMMANDS, command_parser, missing, parser
from gdrpy.cli.exits import OK
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output


def add_arguments(parser: CommandParser) -> None:
    about = "the command (default: all)"
    parser.add_argument(
        "command", nargs="?", type=_command, choices=COMMANDS, metavar="COMMAND", help=about
    )


def run(args: argparse.Namespace, output: Output) -> int:
    told = parser() if args.command is None else command_parser(args.command)
    if not args.json:
        told.print_help()
    output.finish({"command": args.command, "help": told.format_help()})
    return OK


def _command(name: str) -> str:
    if name not in COMMANDS:
        raise argparse.ArgumentTypeError(missing(name))
    return name
