"""``gdrpy watch``: what happens to the broker's regions, as it happens."""

from __future__ import annotations

import argparse
import itertools
from typing import TYPE_CHECKING

from gdrpy.cli import broker, options
from gdrpy.cli.exits import OK
from gdrpy.cli.output import Output

if TYPE_CHECKING:
    from gdrpy.broker.client.records import Event
    from gdrpy.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add ``watch`` to the command line."""
    parser = broker.add_command(
        commands,
        "watch",
        run,
        summary="what happens to regions, as it happens",
        description=(
            "Prints a line when a region that you may read is allocated, published, sealed or\n"
            "deleted, when memory was freed, and when events were lost because the broker was\n"
            "restarted."
        ),
        examples=(
            "gdrpy watch\n"
            "gdrpy watch models/ --count 1       until the first one whose name begins so\n"
            "gdrpy watch --json | jq -r .name"
        ),
        exit_status="0  so many events came\n1  the broker went away\n130  ended by Ctrl-C",
        json_help="print each event as one line of JSON on stdout, and nothing else",
    )
    broker.add_prefix(parser)
    parser.add_argument(
        "--count",
        type=options.positive_number,
        metavar="N",
        help="end after so many events (default: go on)",
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Print them."""
    with broker.connect(args) as client, client.watch(args.prefix) as events:
        for event in itertools.islice(events, args.count):
            output.line(_words(event))
            output.record(event.as_dict())
    return OK


def _words(event: Event) -> str:
    if event.name is None:
        return event.kind
    return f"{event.kind:10}{event.name}  version {event.version}, region {event.region}"
