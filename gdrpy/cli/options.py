"""What the parsers of all commands share."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any, Protocol

from gdrpy import cuda
from gdrpy.cli.exits import UNUSABLE
from gdrpy.cli.output import Output
from gdrpy.common.arguments import as_device
from gdrpy.memory.backends import ALL

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["CommandParser"]


class CommandParser(argparse.ArgumentParser):
    """A command's, which takes options between its positional arguments too."""

    _intermixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As of any parser, which has an optional argument end before an option."""
        if self._intermixing:  # by the call below
            return super().parse_known_args(args, namespace)
        self._intermixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixing = False


class Run(Protocol):
    """What a command does with its arguments; returns the exit status."""

    def __call__(self, args: argparse.Namespace, output: Output) -> int: ...


def add_command(
    commands: Commands,
    name: str,
    run: Run,
    *,
    summary: str,
    description: str,
    examples: str,
    exit_status: str,
    json_help: str = "print one JSON object on stdout, and nothing else",
) -> argparse.ArgumentParser:
    """The parser of a command, with the options that every command has.

    ``refusal`` among its defaults is the status when a call of the command's is refused: by
    default nothing can be run here then.
    """
    parser = commands.add_parser(
        name,
        description=description,
        epilog=f"examples:\n{_indent(examples)}\n\nexit status:\n{_indent(exit_status)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help=json_help)
    parser.set_defaults(run=run, parser=parser, summary=summary, refusal=UNUSABLE)
    return parser


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines())


def add_backend(parser: argparse.ArgumentParser) -> None:
    """``--backend``."""
    parser.add_argument(
        "--backend",
        choices=list(ALL),
        help="the way to get CPU mappings (default: $GDRPY_BACKEND, else the best there is; see "
        "'gdrpy info')",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """``--device`` of this process, which :func:`find_device` finds."""
    parser.add_argument(
        "--device",
        type=device_name,
        default=0,
        metavar="N|UUID|PCI",
        help="the GPU: its CUDA ordinal, its UUID (GPU-...) or its PCI address (default: 0)",
    )
    parser.set_defaults(device_is_here=True)


def find_device(args: argparse.Namespace) -> None:
    """Have ``--device`` be the ordinal of the GPU that it names. Raises Error."""
    if "device_is_here" in args:
        args.device = cuda.ordinal("--device", args.device)


def device_name(text: str) -> int | str:
    """A GPU's ordinal, UUID or PCI address."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return as_device("the command line", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole_number(text: str) -> int:
    """An integer from 0 up."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def positive_number(text: str) -> int:
    """An integer from 1 up."""
    number = whole_number(text)
    if number == 0:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def octal_mode(text: str) -> int:
    """Permission bits as of a file: ``0640``."""
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
