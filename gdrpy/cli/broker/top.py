"""Shows repeatedly what the broker holds: bytes on each device and for each user, the
largest regions with how many clients hold them, and requests per second.

examples:
  gdrpy top
  gdrpy top --count 1                     once
  gdrpy top --json --interval 10 | jq .used

exit status:
  0    --count samples were shown
  1    the broker went away
  2    wrong usage, or no broker: start one with 'gdrpy serve'
  130  ended by Ctrl-C
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

from rich.console import Group
from rich.text import Text

from gdrpy.broker.client.broker import Broker
from gdrpy.broker.protocol import CPU_DEVICE
from gdrpy.cli import broker, options
from gdrpy.cli.broker import ls
from gdrpy.cli.exits import OK
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output, Renderable, table
from gdrpy.cli.sizes import approximate_size, counted

#: How many regions are shown, the largest first.
_SHOWN = 20


def add_arguments(parser: CommandParser) -> None:
    parser.json.help = "print each sample as one line of JSON on stdout, and nothing else"
    broker.add_socket(parser)
    parser.option("--interval", options.seconds, "S", "seconds between two samples", "1")
    parser.option("--count", options.positive_number, "N", "end after N samples (default: never)")


def run(args: argparse.Namespace, output: Output) -> int:
    before = None
    with broker.connect(args) as client, output.live() as show:
        for number in itertools.count(1):
            sample = Sample(client, before)
            show(sample.picture(output))
            output.record(sample.json())
            if number == args.count:
                break
            time.sleep(args.interval)
            before = sample
    return OK


class Sample:
    """The broker at one moment."""

    def __init__(self, client: Broker, before: Sample | None) -> None:
        self.socket = client.socket
        self.status = client.status()
        self.when = time.monotonic()
        regions = client.list()
        #: The largest regions.
        self.regions = sorted(regions, key=lambda region: region.size, reverse=True)[:_SHOWN]
        #: Requests a second since the sample before; None for the first one.
        self.rate = None
        if before is not None:
            self.rate = (self._requests() - before._requests()) / (self.when - before.when)

    def _requests(self) -> int:
        return sum(self.status["requests"].values())

    def json(self) -> dict[str, Any]:
        """Plain values: bytes by device ("-1" is the host) and by "device/user"."""
        return {
            **self.status,
            "requests_a_second": self.rate,
            "largest": [broker.listed(region) for region in self.regions],
        }

    def picture(self, output: Output) -> Renderable:
        """The sample as tables."""
        regions = [Text(ls.drawn(self.regions, output))] if self.regions else []
        status = self.status
        rate = "" if self.rate is None else f", {counted(round(self.rate), 'request')} a second"
        counts = ", ".join(
            counted(status[f"{noun}s"], noun) for noun in ("region", "lease", "session")
        )
        first = Text(f"{self.socket}: {counts}{rate}")
        return Group(first, self._devices(), self._users(), *regions)

    def _devices(self) -> Renderable:
        rows = []
        for device, limit in self.status["limits"].items():
            used = self.status["used"][device]
            share = f"{used / limit:.0%}" if limit else ""
            rows.append((_device(device), approximate_size(used), approximate_size(limit), share))
        figures = ("used", "of", "share")
        return table(("device", *figures), rows, right=figures)

    def _users(self) -> Renderable:
        rows = []
        for key, used in sorted(self.status["users"].items(), key=lambda item: -item[1]):
            device, _, uid = key.partition("/")
            rows.append((broker.user_words(int(uid)), _device(device), approximate_size(used)))
        return table(("user", "device", "used"), rows, right=("used",))


def _device(number: str) -> str:
    return broker.device_words("cpu" if int(number) == CPU_DEVICE else int(number))
