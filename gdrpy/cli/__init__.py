"""The ``gdrpy`` command."""

from __future__ import annotations

import argparse
import importlib
import itertools
import shlex
import sys
import warnings
from collections.abc import Sequence

from gdrpy import sim
from gdrpy.cli import helptext, options
from gdrpy.cli.exits import FAILED, INTERRUPTED, UNUSABLE, CommandError, ReaderGone, words_of
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.common import spelling
from gdrpy.errors import (
    BackendUnavailable,
    CudaError,
    Error,
    NotFound,
    OutOfMemory,
    PermissionDenied,
)

#: Every command by its module below this package, with a line on each; the last part of the
#: module's name is the command. A module is imported when its command is called, not before.
GROUPS = {
    "this machine and this process": {
        "info": "devices, drivers and backends, usable or not, and why",
        "validate": "check that CPU and GPU see the same bytes on every path",
        "handover.producer": "hand a region of GPU memory to 'gdrpy consumer', step by step",
        "handover.consumer": "take over the region of 'gdrpy producer', step by step",
        "libgdrapi": "where libgdrapi.so.2 for C programs is, and what it uses here",
    },
    "speed on this machine": {
        "measure.copybw": "copy bandwidth by mapping, DMA and copy engine",
        "measure.copylat": "latency of small copies, by mapping, cuMemcpy and copy engine",
        "measure.pplat": "ping-pong latency, CPU to GPU and back: flags, records, calls",
        "measure.apiperf": "what each call costs: alloc, import, map, pin, engine, and back",
        "measure.tune": "measure which copy path is faster here, and keep the result",
    },
    "the broker": {
        "broker.serve": "the broker: named regions for every process of the machine",
        "broker.top": "the broker at work: bytes, holders, requests per second",
        "broker.watch": "what happens to regions, as it happens",
    },
    "regions of the broker": {
        "broker.ls": "the regions that you may read",
        "broker.stat": "one region in full: permissions, holders, tensors",
        "broker.alloc": "make a region, or find it with this size",
        "broker.put": "copy a file into a region",
        "broker.get": "copy a region to a file",
        "broker.load": "load a safetensors file, or a checkpoint of many",
        "broker.save": "save regions into a folder",
        "broker.restore": "bring regions back from such a folder",
        "broker.seal": "make a region immutable",
        "broker.rm": "delete regions",
    },
    "your shell": {
        "help": "what a command does, as 'gdrpy COMMAND --help'",
        "completion": "a script that completes commands, options and names of regions",
    },
}
#: The module of each command.
COMMANDS = {module.rpartition(".")[2]: module for group in GROUPS.values() for module in group}


#: Calls of the API that users type as commands, and the commands to suggest.
WORDS_OF_THE_API = {
    "list": "ls",
    "status": "top",
    "tensors": "stat",
    "allocate": "alloc",
    "create": "alloc",
    "publish": "put",
    "put_tensors": "load",
    "load_checkpoint": "load",
    "attach": "get",
    "get_many": "get",
    "digest": "seal",
    "delete": "rm",
    "remove": "rm",
}


def parser() -> helptext.Parser:
    """The parser of ``gdrpy`` itself, which leaves a command's words to the command."""
    lines = []
    for title, group in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {module.rpartition('.')[2]:12}{line}" for module, line in group.items()]
    whole = helptext.Parser(
        prog="gdrpy",
        usage="gdrpy [-h] [-V] COMMAND ...",
        description="CPU and GPU views of one region of NVIDIA GPU memory.",
        epilog="\n".join([*lines[1:], "", "For help on a command: gdrpy COMMAND --help"]),
    )
    about = "print the version and exit"
    whole.add_argument("-V", "--version", action=_Version, nargs=0, help=about)
    whole.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)
    return whole


def _named(whole: helptext.Parser, words: list[str]) -> tuple[str, list[str]]:
    """The command, and the words after it; ends the program if there is no command."""
    if words and words[0].startswith("-") and (at := _place_of_command(words)):
        right = shlex.join(["gdrpy", *words[at:], *words[:at]])
        whole.error(f"{words[0]} belongs after the command: {right}")
    name, *rest = whole.parse_args(words).words or [""]
    if not name:
        whole.print_help(sys.stderr)
        whole.exit(UNUSABLE)
    if name not in COMMANDS:
        whole.error(missing(name))
    return name, rest


def _place_of_command(words: list[str]) -> int | None:
    """The index of the first command, if the words begin with an option of that command."""
    if words[0] in ("-h", "--help", "-V", "--version", "--"):
        return None
    return next((at for at, word in enumerate(words) if word in COMMANDS), None)


def missing(name: str) -> str:
    """The message for a word that is not a command."""
    near = spelling.nearest(name, [*COMMANDS, *WORDS_OF_THE_API])
    meant = f"did you mean '{WORDS_OF_THE_API.get(near, near)}'? " if near else ""
    return f"there is no command {name!r}: {meant}'gdrpy --help' lists them"


class _Version(argparse.Action):
    """Look the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        Output().text(f"gdrpy {importlib.import_module('gdrpy.cli.header').gdrpy_version()}")
        parser.exit()


def command_parser(name: str) -> CommandParser:
    """The parser of a command, whose module is imported."""
    return CommandParser(name, importlib.import_module(f"gdrpy.cli.{COMMANDS[name]}"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except ReaderGone as error:
        return error.status
    except CommandError as error:  # help could not be written
        return _give_up(Output(), error, error.status, words_of(error))
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(words: list[str]) -> int:
    whole = parser()
    whole.as_json = "--json" in itertools.takewhile("--".__ne__, words)
    name, rest = _named(whole, words)
    command = command_parser(name)
    command.as_json = "--json" in itertools.takewhile("--".__ne__, rest)
    args = command.parse_intermixed_args(rest)
    args.command_line = shlex.join(["gdrpy", *words])
    output = Output(args.json)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: output.warn(str(message))
        try:
            options.check_environment()
            options.find_device(args)
            return int(args.run(args, output))
        except ReaderGone:
            raise
        except KeyboardInterrupt:
            output.interrupted()
            return INTERRUPTED
        except CommandError as error:
            return _give_up(output, error, error.status, args.words(error))
        except sim.BadEnvironment as error:
            return _give_up(output, error, UNUSABLE, words_of(error))
        except Error as error:
            return _give_up(output, error, _status(error, args.refusal), args.words(error))
        except MemoryError as error:
            why = f"the host's memory is used up: {str(error) or 'use less'}"
            return _give_up(output, CommandError(why), args.refusal, why)


def _status(error: Error, refusal: int) -> int:
    """The exit status of an error: the command cannot run here, or it failed."""
    if isinstance(error, CudaError):
        return UNUSABLE if error.call == "cuInit" else FAILED
    if isinstance(error, NotFound | OutOfMemory | PermissionDenied):
        return refusal
    return UNUSABLE if isinstance(error, BackendUnavailable) else FAILED


def _give_up(output: Output, error: Exception, status: int, words: str) -> int:
    output.error(words)
    output.failed(type(error).__name__, words)
    return status
