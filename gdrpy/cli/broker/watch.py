"""Prints a line when a region that you may read is allocated, published, sealed or
deleted, when it ends with its exporter, when the memory of a deleted region is free
again (without its name), and when events were lost, because the broker restarted or
this command was too slow. With PREFIX only events of names that begin with it, and
lost events, are printed and counted.

examples:
  gdrpy watch
  gdrpy watch models/ --count 1       # until the first event of a name with this prefix
  gdrpy watch --json | jq -r 'select(.name).name'

exit status:
  0    --count events were printed
  1    the broker went away
  2    wrong usage, or no broker: start one with 'gdrpy serve'
  130  ended by Ctrl-C: without --count it always ends so, unless the broker goes away
"""

from __future__ import annotations

import argparse
import itertools

from gdrpy.broker.replies import Event
from gdrpy.cli import broker, options
from gdrpy.cli.exits import INTERRUPTED, OK
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import counted

#: The meaning of events without a name.
_NAMELESS = {
    "freed": "the memory of a region that has neither a name nor a holder any more",
    "lost": "some events before this one: look at 'gdrpy ls'",
}


def add_arguments(parser: CommandParser) -> None:
    parser.json.help = "print each event as one line of JSON on stdout, and nothing else"
    broker.add_socket(parser)
    broker.add_prefix(parser)
    parser.option("--count", options.positive_number, "N", "end after N events (default: never)")


def run(args: argparse.Namespace, output: Output) -> int:
    with broker.connect(args) as client, client.watch(args.prefix) as events:
        output.note(f"watching {_watched(args)}")
        shown = (event for event in events if event.kind != "freed" or not args.prefix)
        try:
            for event in itertools.islice(shown, args.count):
                output.line(_words(event))
                output.record(event.as_dict())
        except KeyboardInterrupt:
            return INTERRUPTED
    return OK


def _watched(args: argparse.Namespace) -> str:
    """What is watched, and what ends the command."""
    what = f"regions whose names begin with {args.prefix!r}" if args.prefix else "all regions"
    after = "" if args.count is None else f"after {counted(args.count, 'event')} or "
    return f"{what} that you may read: ends {after}by Ctrl-C"


def _words(event: Event) -> str:
    if event.name is None:
        about = _NAMELESS.get(event.kind, "")
    else:
        about = f"{event.name}  version {event.version}, region {event.region}"
    return f"{event.kind:10}{about}"
