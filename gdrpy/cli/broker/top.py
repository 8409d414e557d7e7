"""Shows repeatedly what the broker holds: bytes on each device and for each user, the
processes that hold most, also of memory that has no name, the regions with their versions
and how many clients hold them or have them asleep, and requests per second. On a terminal
it fills the screen, and these keys work:

  q  quit, as Ctrl-C does
  s  sort the regions by size, by name, or by how many clients hold them
  /  show only the regions whose names contain what you type next; Enter ends, Esc shows all

examples:
  gdrpy top
  gdrpy top --count 1                     # once
  gdrpy top --json --interval 10 | jq -c .devices
  gdrpy top --json --count 1 | jq '.nameless[].holders[].pid'

exit status:
  0    --count samples were shown, or it was ended by q or Ctrl-C
  1    the broker went away
  2    wrong usage, or no broker: start one with 'gdrpy serve'
  130  ended by Ctrl-C before --count samples were shown
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import convert
from rich.console import Group
from rich.text import Text

from gdrpy.broker.client.broker import Broker
from gdrpy.broker.protocol import CPU_DEVICE
from gdrpy.broker.replies import Holder, RegionInfo, Sleeper
from gdrpy.cli import broker, keys, options
from gdrpy.cli.broker import checkpoints, listing, ls
from gdrpy.cli.broker.checkpoints import Checkpoints
from gdrpy.cli.exits import OK
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output, Renderable
from gdrpy.cli.sizes import approximate_size, counted
from gdrpy.errors import NotFound, PermissionDenied

#: How many regions are shown where stdout is not a terminal.
_SHOWN = 20
#: The users and the processes to show: as many as leave room for the fewest regions.
_FEW, _FEWEST = (5, 2, 0), 4
#: The largest regions in use whose holders are asked for.
_ASKED = 32
#: Lines around the regions: the frame and titles of their table, and the note below it.
_FRAME = 5
_BAR = 40
#: What begins the lines of users and processes.
_INDENT = "  "
#: Columns of the names of users and processes, where there is room.
_COLUMN = 12
#: Columns that the path of the broker's socket has at least.
_SOCKET = 12
#: The columns of the regions; the last ones are left out where there is no room.
_REGIONS = ("name", "held by", "size", "version", "on", "rights", "owner")
#: From these shares of a device on a bar has another colour.
_COLOURS = ((0.9, "red"), (0.7, "yellow"), (0.0, "green"))

#: How regions can be sorted.
_ORDERS: dict[str, Callable[[RegionInfo], Any]] = {
    "size": lambda region: -region.size,
    "name": lambda region: region.name,
    "holders": lambda region: -(region.readers + region.writers),
}


def add_arguments(parser: CommandParser) -> None:
    parser.json.help = "print each sample as one line of JSON on stdout, and nothing else"
    broker.add_socket(parser)
    parser.option("--interval", options.seconds, "S", "seconds between two samples", "1")
    parser.option("--count", options.positive_number, "N", "end after N samples (default: never)")


def run(args: argparse.Namespace, output: Output) -> int:
    with broker.connect(args) as client:
        if args.count is None:
            with contextlib.suppress(KeyboardInterrupt):
                _show_always(client, args.interval, output)
            return OK
        before = None
        for number in range(args.count):
            if number:
                time.sleep(args.interval)
            before = Sample(client, before)
            output.show(before.picture(View(), output, None))
            output.record(before.json())
    return OK


def _show_always(client: Broker, interval: float, output: Output) -> None:
    """Show samples until the user quits."""
    sample, view = None, View()
    with output.live() as show, keys.pressed(output.is_live()) as terminal:
        while True:
            sample = Sample(client, sample)
            output.record(sample.json())
            show(sample.picture(view, output, output.height()))
            end = time.monotonic() + interval
            while (rest := end - time.monotonic()) > 0:
                for key in terminal.within(rest):
                    if not view.press(key):
                        return
                    show(sample.picture(view, output, output.height()))


@dataclass
class View:
    """The order and the names that the user chose."""

    order: str = "size"
    part: str = ""
    typing: bool = False

    def press(self, key: str) -> bool:
        """Handle a key; returns whether to go on."""
        if self.typing:
            self._type(key)
        elif key in "qQ":
            return False
        elif key in "sS":
            orders = [*_ORDERS]
            self.order = orders[(orders.index(self.order) + 1) % len(orders)]
        elif key in ("/", keys.ESCAPE):
            self.typing, self.part = key == "/", ""
        return True

    def _type(self, key: str) -> None:
        if key in "\r\n":
            self.typing = False
        elif key == keys.ESCAPE:
            self.typing, self.part = False, ""
        elif key in "\b\x7f":
            self.part = self.part[:-1]
        elif key.isprintable():
            self.part += key

    def of(self, regions: Sequence[RegionInfo]) -> list[RegionInfo]:
        """The regions to see, in their order."""
        seen = [region for region in regions if self.part in str(region.name)]
        return sorted(seen, key=_ORDERS[self.order])

    def __str__(self) -> str:
        part = self.part + "_" * self.typing or "all"
        return f"q quit   s sort: {self.order}   / show: {part}"


@dataclass
class _Process:
    """A process that holds regions, each by one connection or several, or has them asleep."""

    uid: int
    #: Their sizes, by their numbers.
    regions: dict[int, int] = field(default_factory=dict)
    #: Those of them to which no name refers.
    nameless: set[int] = field(default_factory=set)
    writes: bool = False
    gpu: bool = False
    asleep: int = 0
    older: int = 0

    @property
    def size(self) -> int:
        return sum(self.regions.values())

    def add(self, holder: Holder, region: RegionInfo) -> None:
        self.regions[region.region] = region.size
        if not region.linked:
            self.nameless.add(region.region)
        self.writes |= holder.writable
        self.gpu |= holder.gpu

    def add_sleeper(self, sleeper: Sleeper) -> None:
        self.asleep += 1
        self.older += sleeper.older

    def words(self, width: int) -> str:
        """What it holds and has asleep, in so many columns if that is possible."""
        older = f" ({self.older} older)" * bool(self.older)
        start = f" {approximate_size(self.size):>9} in {counted(len(self.regions), 'region')}"
        start += f", {len(self.nameless)} without a name" * bool(self.nameless)
        start += f", {self.asleep} asleep{older}" * bool(self.asleep)
        views = ", writes" * self.writes + ", GPU view" * self.gpu
        end = f", by {broker.user_words(self.uid)}"
        narrow = (self.asleep or self.nameless) and len(start + views + end) > width
        return start + end if narrow else start + views + end

    def json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "size": self.size,
            "regions": len(self.regions),
            "nameless": len(self.nameless),
            "writes": self.writes,
            "gpu_view": self.gpu,
            "asleep": self.asleep,
            "older": self.older,
        }


class Sample:
    """The broker at one moment."""

    def __init__(self, client: Broker, before: Sample | None) -> None:
        self.socket = client.socket
        self.status = client.status()
        self.when = time.monotonic()
        listed = client.list()
        self._nameless = convert(self.status["nameless"], list[RegionInfo])
        self._processes = _processes(client, listed, self._nameless)
        self._checkpoints: Checkpoints = before._checkpoints if before else Checkpoints(client)
        self.regions = self._checkpoints.whole(listed)
        self._listed = {region.name: region for region in listed}
        #: Requests a second since the sample before; None for the first one.
        self.rate = None
        if before is not None:
            self.rate = (self._requests() - before._requests()) / (self.when - before.when)

    def _requests(self) -> int:
        return sum(self.status["requests"].values())

    def json(self) -> dict[str, Any]:
        """Plain values; devices and users are lists, not the maps of the status."""
        status = self.status
        devices = [
            {**self._place(device), "used": status["used"][device], "limit": limit}
            for device, limit in status["limits"].items()
        ]
        users = []
        for key, used in status["users"].items():
            device, _, uid = key.partition("/")
            user = {"uid": int(uid), "user": broker.user_words(int(uid))}
            users.append({**user, **self._place(device), "used": used})
        gpus = status["gpus"]
        return {
            **{name: status[name] for name in ("regions", "names", "sessions", "leases")},
            "devices": devices,
            "users": users,
            "processes": [
                {"pid": pid, "uid": uid, "user": broker.user_words(uid), **process.json()}
                for (pid, uid), process in self._most()
            ],
            "nameless": [
                {**broker.listed(one, gpus), "holders": one.as_dict()["holders"]}
                for one in self._nameless
            ],
            "requests": status["requests"],
            "requests_a_second": self.rate,
            "largest": [
                checkpoints.told(self._listed[region.name], region, gpus)
                for region in View().of(self.regions)[:_SHOWN]
            ],
        }

    def _place(self, number: str) -> dict[str, Any]:
        uuids, gpus = self.status["uuids"], self.status["gpus"]
        return {"device": _device(number), "uuid": uuids.get(number), "gpu": gpus.get(number)}

    def picture(self, view: View, output: Output, height: int | None) -> Renderable:
        """The sample; in so many lines, with the keys below it, if it fills a terminal."""
        keys_below = [] if height is None else [Text(str(view), "bold", no_wrap=True)]
        rows = _SHOWN
        for few in _FEW:
            above = [
                Text(self._head(output), no_wrap=True),
                *self._devices(output.width()),
                *_list("users", self._users(), few),
                *_list("processes", self._holding(output.width()), few),
            ]
            if height is None:
                break
            rows = height - len(above) - _FRAME - len(keys_below)
            if rows >= _FEWEST:
                break
        rows = max(rows, 1)
        seen = view.of(self.regions)
        table = [Text(ls.drawn(seen[:rows], output, _REGIONS))] if seen else []
        note = _more(len(seen) - rows, ": 'gdrpy ls' lists all")
        return Group(*above, *table, *note, *keys_below)

    def _head(self, output: Output) -> str:
        """The counts, after the broker's socket where that has room."""
        status = self.status
        rate = "" if self.rate is None else f", {counted(round(self.rate), 'request')}/s"
        nouns = ("region", "lease", "session")
        counts = ", ".join(counted(status[f"{noun}s"], noun) for noun in nouns)
        room = output.width() - len(f": {counts}{rate}")
        if room < _SOCKET:
            return counts + rate
        return f"{listing.fitted(self.socket, room, output)}: {counts}{rate}"

    def _devices(self, width: int) -> list[Text]:
        """A bar for each device."""
        lines = []
        for number, limit in self.status["limits"].items():
            used = self.status["used"][number]
            share = used / limit if limit else 0.0
            name = f"{broker.device_words(_device(number)):7}"
            words = f" {approximate_size(used):>9} of {approximate_size(limit):>9} {share:4.0%}"
            room = max(min(width - len(name) - len(words), _BAR), 0)
            full = min(round(share * room), room)
            colour = next(colour for least, colour in _COLOURS if share >= least)
            bar = ("━" * full, colour), ("─" * (room - full), "dim")
            lines.append(Text.assemble(name, *bar, words, no_wrap=True))
        return lines

    def _users(self) -> list[str]:
        lines = []
        for key, used in sorted(self.status["users"].items(), key=lambda item: -item[1]):
            number, _, uid = key.partition("/")
            where = broker.device_words(_device(number))
            lines.append(
                f"{broker.user_words(int(uid)):{_COLUMN}} {approximate_size(used):>9} on {where}"
            )
        return lines

    def _most(self) -> list[tuple[tuple[int, int], _Process]]:
        """The processes, those that hold most first."""
        return sorted(self._processes.items(), key=lambda item: -item[1].size)

    def _holding(self, width: int) -> list[str]:
        """A line for each process: with its command's name, if that fits."""
        most = self._most()
        rest = [one.words(width - len(_INDENT) - len(str(pid))) for (pid, _), one in most]
        named = [f"{pid} {_command(pid, uid)}" for (pid, uid), _ in most]
        room = width - max(map(len, rest), default=0) - len(_INDENT)
        column = max([_COLUMN, *map(len, named)])
        if column > room:
            named = [str(pid) for (pid, _), _ in most]
            column = max([min(_COLUMN, room), *map(len, named)])
        return [f"{name:{column}}{line}" for name, line in zip(named, rest, strict=True)]


def _processes(
    client: Broker, regions: Sequence[RegionInfo], nameless: Sequence[RegionInfo]
) -> dict[tuple[int, int], _Process]:
    """The processes that hold regions or have them asleep, by their numbers for the broker and
    their users: those of other PID namespaces are 0 to it.
    """
    found: dict[tuple[int, int], _Process] = {}
    used = [one for one in View().of(regions) if one.readers + one.writers + one.asleep]
    for region in used[:_ASKED]:
        with contextlib.suppress(NotFound, PermissionDenied):  # deleted meanwhile
            now = client.stat(str(region.name))
            for holder in now.holders or ():
                key = holder.pid, holder.uid
                found.setdefault(key, _Process(holder.uid)).add(holder, region)
            for sleeper in now.sleepers or ():
                key = sleeper.pid, sleeper.uid
                found.setdefault(key, _Process(sleeper.uid)).add_sleeper(sleeper)
    for region in nameless:
        for holder in region.holders or ():
            key = holder.pid, holder.uid
            found.setdefault(key, _Process(holder.uid)).add(holder, region)
    return found


def _command(pid: int, uid: int) -> str:
    """The name of a process's command; empty if it is not there as this user's.

    A broker in another PID namespace has other numbers.
    """
    try:
        with Path(f"/proc/{pid}/comm").open(errors="replace") as file:
            name = file.read().rstrip("\n") if os.fstat(file.fileno()).st_uid == uid else ""
    except OSError:
        return ""
    return name if name.isprintable() else ascii(name)


def _list(title: str, lines: list[str], most: int) -> list[Text]:
    """The first lines of a list, below its title."""
    if not lines or not most:
        return []
    shown = [Text(_INDENT + line, no_wrap=True) for line in lines[:most]]
    return [Text(title, "bold"), *shown, *_more(len(lines) - most)]


def _more(number: int, where: str = "") -> list[Text]:
    """A note on lines that are left out."""
    return [Text(f"{_INDENT}and {number} more{where}", "dim")] if number > 0 else []


def _device(number: str) -> int | str:
    return "cpu" if int(number) == CPU_DEVICE else int(number)
