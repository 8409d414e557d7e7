"""The parser of a command, the options that commands share, and the environment variables."""

from __future__ import annotations

import argparse
import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gdrpy import cuda
from gdrpy.broker import unix as _unix
from gdrpy.cli import helptext
from gdrpy.cli.exits import UNUSABLE, CommandError, words_of
from gdrpy.cli.output import Output
from gdrpy.common.arguments import as_device
from gdrpy.memory.backends import ALL

T = TypeVar("T")

#: The library raises ValueError for an unknown driver or backend when it first meets the variable,
#: and takes any GDRPY_TUNING but 0 for 1; on the command line all of these are wrong usage.
_ENVIRONMENT = {
    "GDRPY_BACKEND": tuple(ALL),
    "GDRPY_SIM": ("0", "1"),
    "GDRPY_TUNING": ("0", "1"),
}


class Command(Protocol):
    """The module of a command. Its docstring is the text of its help."""

    __doc__: str | None

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the command's own arguments."""

    def run(self, args: argparse.Namespace, output: Output) -> int:
        """Run the command; returns the exit status."""


class CommandParser(helptext.Parser):
    """The parser of one command.

    The default ``refusal`` is the exit status when the library refuses a call of the command, and
    ``words`` gives the message of an error.
    """

    def __init__(self, name: str, command: Command) -> None:
        description, heading, rest = (command.__doc__ or "").partition("examples:\n")
        super().__init__(
            prog=f"gdrpy {name}",
            description=description,
            epilog=heading + rest,
        )
        self.json = self.add_argument(
            "--json", action="store_true", help="print one JSON object on stdout, and nothing else"
        )
        self.set_defaults(run=command.run, parser=self, refusal=UNUSABLE, words=words_of)
        command.add_arguments(self)

    def option(
        self,
        name: str,
        kind: Callable[[str], Any],
        metavar: str,
        about: str,
        default: str | None = None,
    ) -> None:
        """Add an option with a value; the default is written as a user types it."""
        shown = "" if default is None else f" (default: {default})"
        self.add_argument(name, type=kind, metavar=metavar, help=about + shown, default=default)


def check_environment() -> None:
    """Raise CommandError for a variable with an unknown value."""
    for name, choices in _ENVIRONMENT.items():
        value = os.environ.get(name, "")
        if value and value not in choices:
            raise CommandError(
                f"{name} is {value!r}: unset it, or set it to one of {', '.join(choices)}", UNUSABLE
            )


def add_gpu(parser: CommandParser) -> None:
    """``--backend``, and ``--device`` of this process, which :func:`find_device` finds."""
    add_backend(parser)
    about = "the GPU: its CUDA ordinal, its UUID (GPU-...) or its PCI address"
    parser.option("--device", device_name, "N|UUID|PCI", about, "0")
    parser.set_defaults(device_is_here=True)


def add_backend(parser: CommandParser) -> None:
    """``--backend``."""
    parser.add_argument(
        "--backend",
        choices=list(ALL),
        help="how to get CPU mappings (default: $GDRPY_BACKEND, else the best one here; see "
        "'gdrpy info')",
    )


def find_device(args: argparse.Namespace) -> None:
    """Replace ``--device`` by the ordinal of the GPU that it names. Raises Error."""
    if "device_is_here" in args:
        args.device = cuda.ordinal("--device", args.device)


def checked(check: Callable[[str, str], T]) -> Callable[[str], T]:
    """An option's type from a check of the library's arguments, which raises ValueError."""

    def kind(text: str) -> T:
        try:
            return check("", text)
        except ValueError as error:  # argparse says of which argument, in place of the call
            raise argparse.ArgumentTypeError(str(error).removeprefix(": ")) from None

    return kind


def device_name(text: str, *, or_cpu: bool = False) -> int | str:
    """A GPU's ordinal, UUID or PCI address; with ``or_cpu`` also ``cpu``."""
    if text.isascii() and text.isdigit():
        return int(text)
    return checked(functools.partial(as_device, or_cpu=or_cpu))(text)


def socket_path(text: str) -> Path:
    """A path that is short enough for a socket, in a folder that exists."""
    path = Path(text)
    if len(os.fsencode(path)) >= _unix.PATH_ROOM:
        raise argparse.ArgumentTypeError(
            f"{text!r} is too long: a socket's path has {_unix.PATH_ROOM - 1} bytes at most"
        )
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}: make it first")
    return path


def whole_number(text: str, least: int = 0) -> int:
    """An integer from ``least`` up."""
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} up")
    return int(text)


def positive_number(text: str) -> int:
    """An integer from 1 up."""
    return whole_number(text, 1)


def octal_mode(text: str) -> int:
    """Permission bits like a file's: ``0640``."""
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if mode & ~0o666:
        raise argparse.ArgumentTypeError(f"{text!r} is not an octal mode from 0 to 0666")
    return mode


def seconds(text: str) -> float:
    """A time in seconds, more than 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value
