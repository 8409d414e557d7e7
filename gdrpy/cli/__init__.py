"""The ``gdrpy`` command."""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdrpy import sim
from gdrpy.cli import info, libgdrapi, options, validate
from gdrpy.cli.broker import alloc, get, load, ls, put, rm, seal, serve, stat, top, watch
from gdrpy.cli.environment import check_environment
from gdrpy.cli.exits import FAILED, INTERRUPTED, UNUSABLE, CommandError, words_of
from gdrpy.cli.handover import consumer, producer
from gdrpy.cli.header import gdrpy_version
from gdrpy.cli.measure import apiperf, copybw, copylat, pplat, tune
from gdrpy.cli.output import Output
from gdrpy.errors import (
    BackendUnavailable,
    CudaError,
    Error,
    NotFound,
    OutOfMemory,
    PermissionDenied,
)

if TYPE_CHECKING:
    from gdrpy.cli.options import Commands

#: Every command, in the order of ``gdrpy --help``.
GROUPS = {
    "this machine and this process": (info, validate, producer, consumer, libgdrapi),
    "how fast it is here": (copybw, copylat, pplat, apiperf, tune),
    "the broker": (serve, top, watch),
    "regions of the broker": (ls, stat, alloc, put, get, load, seal, rm),
}


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    whole = argparse.ArgumentParser(
        prog="gdrpy",
        usage="gdrpy [-h] [--version] COMMAND ...",
        description="CPU and GPU views of one region of NVIDIA GPU memory.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    whole.add_argument("--version", action="version", version=f"gdrpy {gdrpy_version()}")
    commands = whole.add_subparsers(
        prog="gdrpy",
        metavar="COMMAND",
        required=True,
        help=argparse.SUPPRESS,
        parser_class=options.CommandParser,
    )
    for modules in GROUPS.values():
        for module in modules:
            module.add_parser(commands)
    whole.epilog = f"{_overview(commands)}\nEach command explains itself: gdrpy COMMAND --help"
    return whole


def _overview(commands: Commands) -> str:
    """The commands in their groups, with a line on each."""
    lines = []
    for title, modules in GROUPS.items():
        lines.append(f"{title}:")
        for module in modules:
            name = module.__name__.rpartition(".")[2]
            lines.append(f"  {name:10}{commands.choices[name].get_default('summary')}")
        lines.append("")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    args, unknown = parser().parse_known_args(words)
    if unknown:
        args.parser.error(f"unrecognized arguments: {shlex.join(unknown)}")
    args.command_line = shlex.join(["gdrpy", *words])
    output = Output(args.json)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: output.warn(str(message))
        try:
            check_environment()
            options.find_device(args)
            return int(args.run(args, output))
        except KeyboardInterrupt:
            output.error("interrupted")
            return INTERRUPTED
        except CommandError as error:
            return _give_up(output, error, error.status)
        except sim.BadEnvironment as error:
            return _give_up(output, error, UNUSABLE)
        except Error as error:
            return _give_up(output, error, _status(error, args.refusal))
        except MemoryError as error:
            used_up = CommandError(f"the host's memory is used up: {str(error) or 'use less'}")
            return _give_up(output, used_up, args.refusal)


def _status(error: Error, refusal: int) -> int:
    """Whether an error says that nothing could be run here, or that something failed."""
    if isinstance(error, CudaError):
        return UNUSABLE if error.call == "cuInit" else FAILED
    if isinstance(error, NotFound | OutOfMemory | PermissionDenied):
        return refusal
    return UNUSABLE if isinstance(error, BackendUnavailable) else FAILED


def _give_up(output: Output, error: Exception, status: int) -> int:
    output.error(words_of(error))
    output.finish({"error": {"type": type(error).__name__, "message": words_of(error)}})
    return status
