"""``gdrpy put``: bytes of a file or of stdin into a region of the broker."""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gdrpy.cli import broker
from gdrpy.cli.exits import OK, UNUSABLE, CommandError
from gdrpy.cli.output import Output

if TYPE_CHECKING:
    from gdrpy.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add ``put`` to the command line."""
    parser = broker.add_command(
        commands,
        "put",
        run,
        summary="a file's bytes into a region",
        description=(
            "Copies a file, or what comes on stdin, into a new region and publishes it under a\n"
            "name. A region that has the name is replaced in one step: others find the old one or\n"
            "the new one, and who holds the old one keeps it."
        ),
        examples=(
            "gdrpy put table table.bin\n"
            "gdrpy put table table.bin --seal --mode 0644     nobody writes it any more\n"
            "zcat table.gz | gdrpy put table --device cpu     from stdin into host memory"
        ),
        exit_status=(
            "0  it is published\n1  it is not: no memory, or no right to it; nothing changed"
        ),
    )
    broker.add_name(parser)
    parser.add_argument(
        "file", nargs="?", default="-", metavar="FILE", help="what to copy (default: -, stdin)"
    )
    parser.add_argument("--seal", action="store_true", help="nobody may write it any more")
    broker.add_making(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    """Copy and publish."""
    with ExitStack() as undo:
        source, nbytes = _open(args.file, undo)
        if not nbytes:
            raise CommandError("there is nothing to put: a region has one byte or more", UNUSABLE)
        client = undo.enter_context(broker.connect(args))
        draft = undo.enter_context(
            client.create(args.name, nbytes, args.device, mode=args.mode, gpu=False)
        )
        with output.copying(args.name) as tell:
            for offset in range(0, nbytes, broker.CHUNK):
                size = min(broker.CHUNK, nbytes - offset)
                piece = source.read(size)
                if len(piece) != size:
                    raise CommandError(f"{args.file} became shorter while it was read")
                draft.write(piece, offset)
                tell(offset + len(piece), nbytes)
        if args.seal:
            draft.seal()
        draft.publish()
        region = client.stat(args.name)
    output.line(broker.published(region))
    output.finish(broker.shown(region))
    return OK


def _open(name: str, undo: ExitStack) -> tuple[IO[bytes], int]:
    """What to copy, and its length; stdin is copied to a file if it has none.

    Raises CommandError.
    """
    try:
        source = sys.stdin.buffer
        if name != "-":
            source = undo.enter_context(Path(name).open("rb"))  # noqa: SIM115
        if source.isatty():
            raise CommandError("give a FILE, or bytes on stdin instead of a terminal", UNUSABLE)
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            source = undo.enter_context(_spooled(source))
        return source, os.fstat(source.fileno()).st_size - source.tell()
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror}", UNUSABLE) from error


def _spooled(source: IO[bytes]) -> IO[bytes]:
    """A temporary file of all that comes. Raises OSError."""
    whole = tempfile.TemporaryFile()  # noqa: SIM115 - the caller's to close
    shutil.copyfileobj(source, whole, broker.CHUNK)
    whole.seek(0)
    return whole
