"""The ``gdrpy`` command."""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings
from collections.abc import Sequence

from gdrpy import sim
from gdrpy.cli import consumer, copybw, info, producer, serve, validate
from gdrpy.cli.environment import check_environment
from gdrpy.cli.exits import FAILED, INTERRUPTED, UNUSABLE, CommandError
from gdrpy.cli.header import gdrpy_version
from gdrpy.cli.output import Output
from gdrpy.errors import (
    BackendUnavailable,
    CudaError,
    Error,
    NotFound,
    OutOfMemory,
    PermissionDenied,
)

#: Every command, in the order of ``gdrpy --help``.
COMMANDS = (
    info,
    validate,
    copybw,
    producer,
    consumer,
    serve,
)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="gdrpy",
        description="CPU and GPU views of one region of NVIDIA GPU memory.",
        epilog="Each command explains itself: gdrpy COMMAND --help",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"gdrpy {gdrpy_version()}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.add_parser(commands)
    return top


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
            return int(args.run(args, output))
        except KeyboardInterrupt:
            output.error("interrupted")
            return INTERRUPTED
        except CommandError as error:
            return _give_up(output, error, error.status)
        except sim.BadEnvironment as error:
            return _give_up(output, error, UNUSABLE)
        except Error as error:
            return _give_up(output, error, UNUSABLE if _kept_from_running(error) else FAILED)


def _kept_from_running(error: Error) -> bool:
    """Whether an error says that nothing could be run here, rather than that something failed."""
    if isinstance(error, CudaError):
        return error.call == "cuInit"
    return isinstance(error, BackendUnavailable | NotFound | OutOfMemory | PermissionDenied)


def _give_up(output: Output, error: Exception, status: int) -> int:
    output.error(str(error))
    output.finish({"error": {"type": type(error).__name__, "message": str(error)}})
    return status
