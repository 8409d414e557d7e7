"""Runs the broker: it owns regions of GPU and host memory, and hands them by name to the
processes that may have them. A region outlives its makers, and it survives a crash of
the broker: a small keeper process holds the memory until the next broker starts.
SIGTERM, Ctrl-C and a closed terminal end the broker for good and give the memory back.
On a terminal Ctrl-C must be pressed twice while processes hold regions. A broker that is
to outlive its terminal is started below nohup, or by systemd.

examples:
  gdrpy serve                                        # for yourself
  nohup gdrpy serve > broker.log 2>&1 &              # also after the terminal is closed
  gdrpy serve --group gpu --max-bytes-per-user 20G   # for the processes of a group
  gdrpy serve --print-unit service                   # for systemd
  gdrpy serve --print-cdi > /etc/cdi/gdrpy.json      # for container engines
  gdrpy serve --restore /backup/llama                # with the regions of 'gdrpy save'
  gdrpy serve --json --socket /tmp/my.sock           # for a script: one line when ready

exit status:
  0  ended by SIGTERM, by Ctrl-C, or by its terminal
  2  wrong usage, no GPU driver, or another broker has the socket
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import grp
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gdrpy.broker import place
from gdrpy.broker import unix as _unix
from gdrpy.broker.server import daemon, store, systemd
from gdrpy.broker.server.loop import Server
from gdrpy.broker.server.metrics import Metrics
from gdrpy.broker.server.quotas import Quotas
from gdrpy.broker.server.rights import UserMap
from gdrpy.broker.server.state import State
from gdrpy.broker.server.table import RegionEntry
from gdrpy.cli import keys, options
from gdrpy.cli.broker import announcement, cdi, units
from gdrpy.cli.exits import OK, UNUSABLE, CommandError
from gdrpy.cli.header import gdrpy_version
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import approximate_size, counted, parse_size
from gdrpy.errors import Error

log = logging.getLogger(__name__)

_LEVELS = ("debug", "info", "warning", "error")
#: The journal's priorities for these levels. Source: sd-daemon(3).
_PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
#: Seconds that the metrics wait for the serving thread.
_PATIENCE = 2.0
#: Seconds within which a second Ctrl-C ends a broker whose regions are in use.
_ANSWER_WITHIN = 10.0


def add_arguments(parser: CommandParser) -> None:
    parser.json.help = "print one line of JSON on stdout when clients can connect"
    own = "in a private folder in the temporary one"
    default = f"${place.VARIABLE}, else gdrpy/broker.sock in $XDG_RUNTIME_DIR, for root in /run"
    about = f"where to listen (default: {default}, else {own})"
    parser.option("--socket", _socket_path, "PATH", about)
    about = "the socket's mode: who may connect (default: 0600, with --group 0660)"
    parser.option("--mode", options.octal_mode, "OCTAL", about)
    parser.option(
        "--group", _group, "NAME", "the group whose users may connect (default: only you may)"
    )
    about = (
        "count the COUNT users and groups from SEEN on, as the kernel numbers those of a container "
        "here, as those from OWNER on; may be repeated"
    )
    parser.add_argument(
        "--map-users", type=_user_range, metavar="SEEN:OWNER:COUNT", action="append", help=about
    )
    about = "the limit of all regions on each device (default: all of a GPU, half of the host)"
    parser.option("--max-bytes", parse_size, "SIZE", about)
    about = "the limit of one user's regions on each device (default: none)"
    parser.option("--max-bytes-per-user", parse_size, "SIZE", about)
    about = "the most regions that one user may have"
    parser.option("--max-regions", options.positive_number, "N", about, "4096")
    about = "refuse GPU memory to readers, because CUDA would let them write"
    parser.add_argument("--strict", action="store_true", help=about)
    parser.add_argument(
        "--keeper",
        choices=("process", "systemd", "none"),
        help="who holds the memory when the broker is killed: a keeper process, systemd's store "
        "of a service's descriptors, or none (default: process, in a unit systemd)",
    )
    about = "seconds that the keeper process waits for the next broker, or inf"
    parser.option("--linger", _linger, "SECONDS", about, "3600")
    about = "first restore what 'gdrpy save' saved there, except what has a region of its name"
    parser.option("--restore", _absolute, "FOLDER", about)
    about = "serve numbers for Prometheus at this address, by HTTP"
    parser.option("--metrics", _address, "HOST:PORT", about)
    parser.add_argument(
        "--log-level", choices=_LEVELS, default="info", help="what goes to stderr (default: info)"
    )
    about = "print a systemd unit for a broker with these options, and end"
    parser.add_argument("--print-unit", choices=units.KINDS, help=about)
    about = "print a CDI specification, by which containers get the folder of the socket, and end"
    parser.add_argument("--print-cdi", action="store_true", help=about)


def run(args: argparse.Namespace, output: Output) -> int:
    if args.mode is None:
        args.mode = 0o600 if args.group is None else 0o660
    if args.print_unit:
        text = units.text(args.print_unit, args)
        output.line(text.rstrip())
        output.finish({"unit": text})
        return OK
    if args.print_cdi:
        text = cdi.text(args.socket or place.SYSTEM)
        output.line(text)
        output.finish({"cdi": text})
        return OK
    _log_to_stderr(args.log_level)
    path = args.socket
    served: list[State] = []
    try:
        settings = _settings(args)
        path = settings.path

        def ready(server: Server, state: State) -> None:
            served.append(state)
            signal.signal(signal.SIGINT, _Interrupt(server, state))
            _ready(args, output, settings, server, state)

        daemon.serve(settings, f"gdrpy {gdrpy_version()}", ready)
    except KeyboardInterrupt:
        pass
    except Error:
        raise
    except OSError as error:
        where = f" at {path}" if path else ""
        remedy = "choose another --socket"
        if error.errno == errno.EADDRINUSE:
            remedy = f"end it, or {remedy}; `gdrpy ls --socket {path}` shows what it has"
        raise CommandError(
            f"cannot serve{where}: {error.strerror or error}; {remedy}", UNUSABLE
        ) from error
    with contextlib.suppress(CommandError):  # the reader of the lines may be gone
        output.line(_ending(served, args.keeper == "systemd"))
    return OK


class _Interrupt:
    """Ctrl-C ends the broker; on a terminal it must be pressed twice while regions are in use."""

    def __init__(self, server: Server, state: State) -> None:
        self._server = server
        self._state = state
        self._asked = -math.inf

    def __call__(self, *_: object) -> None:
        """Handle the signal, in the thread that serves."""
        table = self._state.table
        held = [one for one in table.regions.values() if one.leases or table.sleepers(one)]
        now = time.monotonic()
        if not held or not keys.in_front() or now - self._asked < _ANSWER_WITHIN:
            self._server.stop()
            return
        self._asked = now
        question = (
            f"processes hold {_told(held)}: press Ctrl-C again within {_ANSWER_WITHIN:g} s to end "
            f"the broker; its names are then lost, and the regions that no process holds\n"
        )
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, question.encode())  # not through stderr, which may be in the middle of it


def _ending(served: list[State], restarts: bool) -> str:
    """The last line of output: what became of the regions."""
    regions = [region for state in served for region in state.table.regions.values()]
    held = [region for region in regions if region.leases]
    free = [region for region in regions if not region.leases]
    if not regions:
        return "the broker has ended; it had no regions"
    if restarts:
        return f"the broker has ended; systemd keeps {_told(regions)} if it restarts the service"
    said = [f"it gave back {_told(free)}"] if free else []
    if held:
        said.append(
            f"processes keep {_told(held)} until they close {'it' if len(held) == 1 else 'them'}"
        )
    return "; ".join(["the broker has ended", *said])


def _told(regions: list[RegionEntry]) -> str:
    size = approximate_size(sum(region.size for region in regions))
    return f"{counted(len(regions), 'region')} ({size})"


def _settings(args: argparse.Namespace) -> daemon.Options:
    """The daemon's options. Raises CommandError, OSError."""
    passed = systemd.take_passed()
    notifier = systemd.Notifier.of_environment()
    if passed.listener is None:
        path = args.socket or place.serve_path()
    else:
        path = passed.listener.getsockname()
    return daemon.Options(
        path=path,
        quotas=Quotas(args.max_bytes, args.max_bytes_per_user, args.max_regions),
        store=_store(args, path, notifier, passed.kept),
        listener=passed.listener,
        mode=args.mode,
        group=args.group,
        strict=args.strict,
        users=UserMap(tuple(args.map_users or ())),
        notifier=notifier,
    )


def _store(
    args: argparse.Namespace, path: str, notifier: systemd.Notifier, kept: dict[str, int]
) -> Callable[[], store.Store]:
    """A function that makes the store of the memory. Raises CommandError."""
    chosen = args.keeper or "process"
    if chosen != "systemd":
        _unix.close_all(list(kept.values()))
    if chosen == "none":
        return store.Store
    if chosen == "process":
        return lambda: store.KeeperStore(f"{path}.keeper", args.linger)
    if not notifier.present:
        raise CommandError(
            "--keeper systemd: systemd did not start this process as a service of Type=notify; "
            "see gdrpy serve --print-unit service",
            UNUSABLE,
        )
    return lambda: systemd.SystemdStore(notifier, kept, systemd.store_limit())


def _ready(
    args: argparse.Namespace, output: Output, settings: daemon.Options, server: Server, state: State
) -> None:
    """Clients can connect: start the metrics, and announce the broker."""
    metrics = _start_metrics(args.metrics, server) if args.metrics else None
    say = functools.partial(announcement.say, output, settings, state.recovered, metrics)
    if args.restore:
        arguments = args.restore, settings.path, say
        threading.Thread(target=_restore, args=arguments, daemon=True).start()
    elif state.recovered:  # its clients wait already, and must not wait for CUDA
        threading.Thread(target=say, daemon=True).start()
    else:
        say()


def _restore(folder: str, path: str, say: Callable[[], object]) -> None:
    """Restore what is missing, by a process of its own; then announce the broker."""
    words = ["restore", folder, "--missing", "--socket", path]
    command = [sys.executable, "-m", "gdrpy", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            log.warning("--restore: %s", done.stderr.strip().removeprefix("error: restore: "))
        else:
            log.info(done.stdout.strip())
    except OSError as error:
        log.warning("--restore: %s", error)
    finally:
        say()


def _start_metrics(address: tuple[str, int], server: Server) -> Metrics:
    def numbers() -> dict[str, Any]:
        return server.ask(server.numbers).result(_PATIENCE)

    try:
        return Metrics(address, numbers, {"version": gdrpy_version()})
    except OSError as error:
        raise CommandError(
            f"--metrics: cannot serve at {address[0]} port {address[1]}: {error.strerror}; choose "
            "another port",
            UNUSABLE,
        ) from error


def _log_to_stderr(level: str) -> None:
    """Log with the time; to the journal, which has the time, with a priority."""
    handler = logging.StreamHandler()
    stderr = os.fstat(2)
    if os.environ.get("JOURNAL_STREAM") == f"{stderr.st_dev}:{stderr.st_ino}":
        handler.setFormatter(_JournalFormatter("%(message)s"))
    else:
        handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
        )
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _JournalFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"<{_PRIORITIES[record.levelname]}>{super().format(record)}"


def _socket_path(text: str) -> str:
    options.socket_path(f"{text}.keeper")
    return str(Path(text).absolute())


def _group(text: str) -> int:
    try:
        return grp.getgrnam(text).gr_gid
    except KeyError:
        raise argparse.ArgumentTypeError(f"there is no group {text!r}") from None


def _user_range(text: str) -> tuple[int, int, int]:
    words = text.split(":")
    if len(words) != 3 or not all(word.isascii() and word.isdigit() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not SEEN:OWNER:COUNT, as 100001:1:65535 is")
    seen, owner, count = map(int, words)
    if max(seen, owner) + count > 1 << 32 or not count:
        raise argparse.ArgumentTypeError(f"{text!r} has numbers that no user has")
    for privileged in (0, os.geteuid()):
        if owner <= privileged < owner + count:
            raise argparse.ArgumentTypeError(
                f"{text!r} would make a container's user {seen + privileged - owner} the broker's "
                f"user {privileged}, who may do all: leave that one out"
            )
    return seen, owner, count


def _absolute(text: str) -> str:
    return str(Path(text).absolute())


def _linger(text: str) -> float:
    return math.inf if text == "inf" else options.seconds(text)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, as 127.0.0.1:9464 is")
    return host.removeprefix("[").removesuffix("]"), int(port)
