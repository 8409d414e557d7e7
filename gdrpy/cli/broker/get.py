"""Copies a region, or a part of it, to a file or to stdout as raw bytes, without CUDA.
If another process writes the region meanwhile, the copy may mix old and new bytes:
seal the region, or publish new versions of it. The files of a checkpoint are regions,
which are copied one by one: 'gdrpy ls NAME/' lists them.

examples:
  gdrpy get table copy.bin
  gdrpy get table | sha256sum
  gdrpy get table --offset 4K --nbytes 64 | xxd

exit status:
  0  all bytes were copied
  1  the region does not exist, you may not read it, it is shorter, or it is a checkpoint
  2  wrong usage, or no broker: start one with 'gdrpy serve'
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from gdrpy.broker.checkpoint import is_checkpoint
from gdrpy.cli import broker
from gdrpy.cli.exits import FAILED, OK, UNUSABLE, CommandError
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import format_size, parse_size


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    broker.add_name(parser)
    about = "the file to write (default: -, stdout)"
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help=about)
    parser.option("--offset", _offset, "SIZE", "where to begin", "0")
    parser.option("--nbytes", parse_size, "SIZE", "how many bytes (default: all)")


def run(args: argparse.Namespace, output: Output) -> int:
    if args.file == "-":
        _check_stdout(args)
    with ExitStack() as undo:
        client = undo.enter_context(broker.connect(args))
        region = undo.enter_context(client.get(args.name, gpu=False, readonly=True))
        if is_checkpoint(region.metadata):
            below = f"{args.name}/"
            raise CommandError(
                f"get: {args.name!r} is a checkpoint, whose files are regions {below!r}*: 'gdrpy "
                f"ls {below}' lists them, and 'gdrpy get' copies each"
            )
        there = region.nbytes - args.offset
        nbytes = there if args.nbytes is None else args.nbytes
        if not 0 < nbytes <= there:
            what = f"--offset {args.offset} is not before its end: give a smaller one"
            if there > 0:
                what = f"{there} from --offset {args.offset} on, not {nbytes}: leave --nbytes out"
            raise CommandError(f"get: {args.name!r} has {region.nbytes} bytes: {what}")
        write = output.raw if args.file == "-" else _writer(args.file, undo)
        with output.copying(args.name) as tell, broker.buffer(nbytes) as buffer:
            for done in range(0, nbytes, len(buffer)):
                piece = buffer[: nbytes - done]
                region.readinto(piece, args.offset + done)
                write(piece)
                tell(done + len(piece), nbytes)
        if args.file != "-":
            output.line(f"{args.file}: {format_size(nbytes)} of {args.name}")
    output.finish({"name": args.name, "file": args.file, "offset": args.offset, "nbytes": nbytes})
    return OK


def _check_stdout(args: argparse.Namespace) -> None:
    """Raise CommandError if raw bytes must not go to stdout."""
    if args.json:
        raise CommandError("--json and the bytes cannot both go to stdout: add a FILE", UNUSABLE)
    if sys.stdout.isatty():
        raise CommandError("raw bytes are not for a terminal: add a FILE, or redirect", UNUSABLE)


def _writer(name: str, undo: ExitStack) -> Callable[[memoryview], None]:
    """A function that writes to a file. Opening and writing raise CommandError."""
    try:
        target = undo.enter_context(Path(name).open("wb"))  # noqa: SIM115
    except OSError as error:
        raise CommandError(f"cannot write {name}: {error.strerror}", UNUSABLE) from error

    def write(piece: memoryview) -> None:
        try:
            target.write(piece)
            target.flush()
        except OSError as error:
            raise CommandError(f"cannot write {name}: {error.strerror}", FAILED) from error

    return write


def _offset(text: str) -> int:
    return 0 if text == "0" else parse_size(text)
