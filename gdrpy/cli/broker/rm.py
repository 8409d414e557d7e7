"""Deletes the names of regions. Processes that hold such a region keep it; its memory
returns to the GPU when the last of them closes it. The files of a checkpoint go with it;
one of them alone is only deleted with -r. A channel, inbox or link goes with its host
memory, NAME/host, and its open ends raise Closed.

examples:
  gdrpy rm table
  gdrpy rm kv-0 kv-1 kv-2
  gdrpy rm llama               # a checkpoint, with its files
  gdrpy rm -r llama            # also llama/...: what an interrupted load left, too

exit status:
  0  all are deleted
  1  at least one does not exist, or you may not delete it
  2  wrong usage, or no broker: start one with 'gdrpy serve'
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from gdrpy.broker.client.arguments import as_name
from gdrpy.broker.client.broker import Broker
from gdrpy.broker.replies import RegionInfo
from gdrpy.broker.rings import FORMAT
from gdrpy.cli import broker, options
from gdrpy.cli.broker.checkpoints import check_alone
from gdrpy.cli.exits import FAILED, OK, CommandError, words_of
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.errors import NotFound, PermissionDenied


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    about = "also every region whose name begins with NAME/"
    parser.add_argument("-r", "--recursive", action="store_true", help=about)
    parser.add_argument(
        "names", nargs="+", type=options.checked(as_name), metavar="NAME", help="a region's name"
    )


def run(args: argparse.Namespace, output: Output) -> int:
    deleted: dict[str, None] = {}
    errors: dict[str, str] = {}
    with broker.connect(args) as client:
        for name in _wanted(client, args):
            if name in deleted:
                continue
            try:
                region = broker.readable(client, name)
                if not args.recursive:
                    check_alone(client, "rm", region)
                if _is_ring(client, region):
                    client.delete(f"{name}/host")
                client.delete(name)
            except (CommandError, NotFound, PermissionDenied) as error:
                errors[name] = broker.typed("rm", words_of(error))
                output.error(errors[name])
            else:
                output.line(f"deleted {name}")
                deleted[name] = None
    output.finish({"deleted": list(deleted), "errors": errors})
    return FAILED if errors else OK


def _is_ring(client: Broker, region: RegionInfo | None) -> bool:
    """Whether a region is a named channel, inbox or link that has its host memory."""
    if region is None or (region.metadata or {}).get("format") != FORMAT:
        return False
    host = broker.readable(client, f"{region.name}/host")
    return host is not None and host.metadata == region.metadata


def _wanted(client: Broker, args: argparse.Namespace) -> Iterator[str]:
    """The names to delete; each is deleted before the next is asked for."""
    for name in args.names:
        below = args.recursive and client.list(f"{name}/")
        if not below or any(info.name == name for info in client.list(name)):
            yield name
        if below:
            yield from [str(info.name) for info in client.list(f"{name}/")]
