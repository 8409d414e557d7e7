"""``gdrpy serve``: the broker, which hands named regions to every process that may have them."""

from __future__ import annotations

import argparse
import grp
import logging
import math
import os
from typing import TYPE_CHECKING, Any

from gdrpy import cuda
from gdrpy.broker import place
from gdrpy.broker.protocol import CPU_DEVICE
from gdrpy.cli import options
from gdrpy.cli.exits import OK, UNUSABLE, CommandError
from gdrpy.cli.header import gdrpy_version, gpu_words
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import approximate_size, parse_size
from gdrpy.errors import Error

if TYPE_CHECKING:
    from gdrpy.broker.server.loop import Server
    from gdrpy.broker.server.service import Limits
    from gdrpy.broker.server.state import State
    from gdrpy.cli.options import Commands

_LEVELS = ("debug", "info", "warning", "error")
#: Bits of a socket's mode that mean anything: who may connect needs to write.
_MODES = 0o666


def add_parser(commands: Commands) -> None:
    """Add ``serve`` to the command line."""
    parser = options.add_command(
        commands,
        "serve",
        run,
        summary="the broker: named regions for every process of the machine",
        description=(
            "Runs the broker: it owns regions of GPU and host memory, and hands them by name to\n"
            "the processes that may have them. A region outlives its makers, and the broker's own\n"
            "sudden end: a small keeper process holds the memory until the next broker is there.\n"
            "SIGTERM and Ctrl-C end it for good and give the memory back."
        ),
        examples=(
            "gdrpy serve                                        for yourself\n"
            "gdrpy serve --group gpu --max-bytes-per-user 20G   for a group's processes\n"
            "gdrpy serve --json --socket /tmp/my.sock           for a script: one line when ready"
        ),
        exit_status=(
            "0  ended by SIGTERM or Ctrl-C\n"
            "2  wrong usage, no GPU driver, or the socket cannot be had: another broker has it"
        ),
        json_help="print one line of JSON on stdout when clients can connect",
    )
    parser.add_argument(
        "--socket",
        type=_socket_path,
        metavar="PATH",
        help=f"where to listen (default: ${place.VARIABLE}, else gdrpy/broker.sock in "
        "$XDG_RUNTIME_DIR, for root in /run, else in a private folder under the temporary one)",
    )
    parser.add_argument(
        "--mode",
        type=_mode,
        metavar="OCTAL",
        help="the socket's mode: who may connect (default: 0600, with --group 0660)",
    )
    parser.add_argument(
        "--group", type=_group, metavar="NAME", help="the socket's group (default: your own)"
    )
    parser.add_argument(
        "--max-bytes",
        type=parse_size,
        metavar="SIZE",
        help="what regions may take on each device (default: all of a GPU, half of the host)",
    )
    parser.add_argument(
        "--max-bytes-per-user",
        type=parse_size,
        metavar="SIZE",
        help="what one user's regions may take on each device (default: no limit of its own)",
    )
    parser.add_argument(
        "--max-regions",
        type=options.positive_number,
        default=4096,
        metavar="N",
        help="how many regions one user may have (default: 4096)",
    )
    parser.add_argument(
        "--keeper",
        choices=("process", "none"),
        default="process",
        help="who holds the memory when the broker is killed: a process of its own, or nobody "
        "(default: process)",
    )
    parser.add_argument(
        "--linger",
        type=_linger,
        default=3600.0,
        metavar="SECONDS",
        help="how long the keeper waits for the next broker, or inf (default: 3600)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse read-only GPU memory to who may not write it, since CUDA lets them",
    )
    parser.add_argument(
        "--log-level", choices=_LEVELS, default="info", help="what goes to stderr (default: info)"
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Serve until told to end."""
    from gdrpy.broker.server import daemon
    from gdrpy.broker.server.service import Limits

    _log_to_stderr(args.log_level)
    try:
        path = args.socket or place.serve_path()
        settings = daemon.Options(
            path=path,
            limits=Limits(args.max_bytes, args.max_bytes_per_user, args.max_regions),
            mode=args.mode if args.mode is not None else 0o600 if args.group is None else 0o660,
            group=args.group,
            linger=args.linger,
            keep=args.keeper == "process",
            strict=args.strict,
        )

        def ready(server: Server, state: State) -> None:
            del server
            _announce(output, settings, state)

        daemon.serve(settings, f"gdrpy {gdrpy_version()}", ready)
    except KeyboardInterrupt:
        pass
    except Error:
        raise
    except OSError as error:
        where = args.socket or error.filename or "its default place"
        raise CommandError(
            f"cannot serve at {where}: {error.strerror}; choose another --socket", UNUSABLE
        ) from error
    return OK


def _announce(output: Output, settings: Any, state: State) -> None:
    """Say that clients can connect, and to what."""
    devices = _devices(settings.limits)
    simulated = any(device["simulated"] for device in devices)
    for device in devices:
        output.line(
            f"{device['name']}: regions may take {approximate_size(device['limit'])} of "
            f"{approximate_size(device['memory'])}"
        )
    if state.recovered:
        output.line(f"took over {state.recovered} regions from the broker before")
    output.line(f"serving at {settings.path}")
    output.record(
        {
            "socket": settings.path,
            "pid": os.getpid(),
            "simulated": simulated,
            "recovered": state.recovered,
            "devices": devices,
        }
    )


def _devices(limits: Limits) -> list[dict[str, Any]]:
    """The devices that regions can be on, and how many bytes of each."""
    found: list[dict[str, Any]] = []
    for number, limit in limits.devices.items():
        device: int | str = number
        if number == CPU_DEVICE:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            name, device, simulated = "host memory", "cpu", False
        else:
            info = cuda.device_info(number)
            name, memory, simulated = (
                gpu_words(info.name, info.simulated),
                info.memory,
                info.simulated,
            )
        found.append(
            {
                "device": device,
                "name": name,
                "simulated": simulated,
                "memory": memory,
                "limit": limit,
            }
        )
    return found


def _log_to_stderr(level: str) -> None:
    """With the time, but where the journal knows it: there with the priority that it reads."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )


def _socket_path(text: str) -> str:
    return text


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= _MODES or mode & ~_MODES:
        raise argparse.ArgumentTypeError(f"{text!r} is not an octal mode from 0 to 0666")
    return mode


def _group(text: str) -> int:
    try:
        return grp.getgrnam(text).gr_gid
    except KeyError:
        raise argparse.ArgumentTypeError(f"there is no group {text!r}") from None


def _linger(text: str) -> float:
    return math.inf if text == "inf" else options.seconds(text)
