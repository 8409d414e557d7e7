"""Copies a file, or stdin, into a new region and publishes it under a name. If a region
has the name already, it is replaced in one step: other processes find the old region
or the new one, and holders of the old one keep it. The new one has the mode of the old
one, its group if you belong to that, and its seal; a warning says when its size is another.
An array that has the file's size keeps its type and shape.

examples:
  gdrpy put table table.bin
  gdrpy put table table.bin --seal --mode 0644     # immutable, readable by every user
  zcat table.gz | gdrpy put table --device cpu     # from stdin into host memory

exit status:
  0  the region is published
  1  it is not, and nothing changed: memory or permission is missing
  2  wrong usage, or no broker: start one with 'gdrpy serve'
"""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import sys
import tempfile
from contextlib import ExitStack
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from gdrpy.broker.checkpoint import is_checkpoint
from gdrpy.broker.client.layouts import ARRAY
from gdrpy.broker.replies import RegionInfo
from gdrpy.cli import broker
from gdrpy.cli.broker.checkpoints import check_alone
from gdrpy.cli.exits import OK, UNUSABLE, CommandError
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import format_size


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    broker.add_name(parser)
    parser.add_argument(
        "file", nargs="?", default="-", metavar="FILE", help="the source (default: -, stdin)"
    )
    broker.add_new_region(parser, replaces=True)


def run(args: argparse.Namespace, output: Output) -> int:
    with ExitStack() as undo:
        source, nbytes = _open(args, undo)
        if not nbytes:
            what = "stdin" if args.file == "-" else args.file
            raise CommandError(
                f"put: {what} has no bytes for region {args.name!r}: a region has at least one: "
                f"give another FILE",
                UNUSABLE,
            )
        client = undo.enter_context(broker.connect(args))
        replaced = broker.readable(client, args.name)
        check_alone(client, "put", replaced)
        mode, seal = broker.mode_and_seal(replaced, args)
        about = _kept(replaced, nbytes)
        draft = undo.enter_context(
            client.create(args.name, nbytes, args.device, mode=mode, metadata=about, gpu=False)
        )
        with output.copying(args.name) as tell, broker.buffer(nbytes) as buffer:
            for offset in range(0, nbytes, len(buffer)):
                piece = buffer[: nbytes - offset]
                if source.readinto(piece) != len(piece):
                    raise CommandError(f"{args.file} became shorter while it was read")
                draft.write(piece, offset)
                tell(offset + len(piece), nbytes)
        if seal:
            draft.seal()
        draft.publish()
        region = client.stat(args.name)
        told = broker.shown(client, region)
    if replaced and is_checkpoint(replaced.metadata):
        output.warn(f"{args.name} was a checkpoint: its files are deleted too")
    elif replaced and replaced.nbytes != nbytes:
        output.warn(
            f"{args.name} had {format_size(replaced.nbytes)} and now has {format_size(nbytes)}; "
            f"processes that hold the old region keep it until they open the name again"
        )
    output.prose(broker.published(region))
    output.finish(told)
    return OK


def _kept(replaced: RegionInfo | None, nbytes: int) -> dict[str, Any]:
    """The type and shape of an array that has as many bytes as the file."""
    metadata = (replaced and replaced.nbytes == nbytes and replaced.metadata) or {}
    return {key: value for key, value in metadata.items() if key == ARRAY}


def _open(args: argparse.Namespace, undo: ExitStack) -> tuple[BufferedIOBase, int]:
    """The source and its length; a pipe is first copied to a file. Raises CommandError."""
    name = args.file
    try:
        source: Any = sys.stdin.buffer
        if name != "-":
            source = undo.enter_context(Path(name).open("rb"))  # noqa: SIM115
        if source.isatty():
            raise CommandError("give a FILE, or bytes on stdin instead of a terminal", UNUSABLE)
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            source = undo.enter_context(_spooled(source))
        return source, os.fstat(source.fileno()).st_size - source.tell()
    except OSError as error:
        meant = broker.swapped("put", name, args.name)
        why = f"cannot read {name}: {error.strerror}{meant}"
        raise CommandError(why, UNUSABLE) from error


def _spooled(source: BufferedIOBase) -> BufferedIOBase:
    """A temporary file with everything that a pipe delivers. Raises OSError."""
    whole = tempfile.TemporaryFile()  # noqa: SIM115 - the caller's to close
    shutil.copyfileobj(source, whole, broker.CHUNK)
    whole.seek(0)
    return whole
