"""Loads tensors into new regions and publishes them under a name: a safetensors file, or the
folder of a checkpoint with its index and all of the files that it names. Any number of
processes can then attach to that one copy: broker.tensors(NAME) returns the tensors where
they lie in GPU memory, and gdrpy.torch.attach(broker, NAME) returns them as torch's.

Each file of a folder becomes a region NAME/ID/FILE. If the command is interrupted, run it
again: it recognizes files that were loaded by size and modification time, and reads only
the others. Once all are loaded, they replace the region that had the name, with its mode
and its seal. 'gdrpy stat NAME' lists the tensors; 'gdrpy rm -r NAME' deletes them, also
after an interrupted load.

examples:
  gdrpy load ~/models/llama llama --seal
  gdrpy load ~/models/llama llama --seal --digest
  gdrpy load weights.safetensors weights --device 1 --mode 0644

exit status:
  0  the tensors are published
  1  they are not, and what had the name before still has it: memory or permission is
     missing, or a file is missing or invalid; or a digest differs
  2  wrong usage, or no broker: start one with 'gdrpy serve'
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path
from typing import Any

from gdrpy import safetensors
from gdrpy.broker.client.arguments import as_name
from gdrpy.broker.client.broker import Broker, BrokerRegion
from gdrpy.cli import broker, options
from gdrpy.cli.broker.checkpoints import check_alone
from gdrpy.cli.exits import FAILED, OK, UNUSABLE, CommandError
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import approximate_size, counted
from gdrpy.errors import Error


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    parser.add_argument("path", metavar="PATH", help="a safetensors file, or a checkpoint's folder")
    parser.add_argument(
        "name",
        nargs="?",
        type=options.checked(as_name),
        metavar="NAME",
        help="the name to publish (default: that of the folder, or of the file without its suffix)",
    )
    about = "compare the SHA-256 of every sealed region with its file's, which reads both"
    parser.add_argument("--digest", action="store_true", help=about)
    broker.add_new_region(parser, replaces=True)


def run(args: argparse.Namespace, output: Output) -> int:
    path = Path(os.path.abspath(args.path))  # noqa: PTH100 - a link's name, not its target's
    given = args.name
    if given is None:
        args.name = path.name if path.is_dir() else path.stem
    copied = _Copied()
    with broker.connect(args) as client:
        replaced = broker.readable(client, args.name)
        check_alone(client, "load", replaced)
        args.mode, args.seal = broker.mode_and_seal(replaced, args)
        if args.digest and not args.seal:
            raise CommandError("--digest needs --seal: only sealed regions have digests", UNUSABLE)
        try:
            tensors, regions = _load(client, args, path, output, copied)
            digests = _compared(regions, path, output) if args.digest else []
        except Error:
            raise
        except OSError as error:
            meant = broker.swapped("load", args.path, given) if given else ""
            why = f"cannot read {args.path}: {os.strerror(error.errno or 0)}{meant}"
            raise CommandError(why, UNUSABLE) from error
        except ValueError as error:
            raise CommandError(f"load: {str(error).removeprefix('load: ')}", FAILED) from error
        info = client.stat(args.name)
        files = [region.info() for region in regions if region.name != info.name]
        shown = broker.shown(client, info)
        gpus = broker.gpus(client)
    nbytes = sum(file.nbytes for file in files)
    told = f"{broker.published(info)}, {counted(tensors, 'tensor')}"
    if files:
        about = f"{counted(tensors, 'tensor')} in {counted(len(files), 'file')}"
        told = f"{broker.published(info, f'{about}, {approximate_size(nbytes)}')}"
    output.prose(told)
    output.prose(copied.words(nbytes or info.nbytes))
    for region, digest in zip(regions, digests, strict=False):
        output.line(f"{region.name} has the file's SHA-256 {digest}")
    output.finish(
        shown
        | {"tensors": tensors, "files": [broker.listed(file, gpus) for file in files]}
        | {"digests": digests, "read_bytes": copied.nbytes, "seconds": copied.seconds}
    )
    return OK


class _Copied:
    """The bytes that a load read, and the seconds that it took."""

    nbytes = 0
    seconds = 0.0

    def words(self, total: int) -> str:
        """In a line, of so many bytes."""
        if not self.nbytes:
            return "nothing was read: all of it was there already"
        there = f", the other {approximate_size(total - self.nbytes)} were there already"
        speed = approximate_size(int(self.nbytes / self.seconds))
        return (
            f"read {approximate_size(self.nbytes)} in {self.seconds:.1f} s, {speed}/s"
            + there * (total > self.nbytes)
        )


def _load(
    client: Broker, args: argparse.Namespace, path: Path, output: Output, copied: _Copied
) -> tuple[int, list[BrokerRegion]]:
    """The number of tensors, and the regions that have them."""
    begun = time.monotonic()
    with output.copying(args.name) as show:

        def tell(done: int, total: int) -> None:
            copied.nbytes, copied.seconds = total, time.monotonic() - begun
            show(done, total)

        options: dict[str, Any] = {"mode": args.mode, "seal": args.seal, "gpu": False}
        options["progress"] = tell
        if not path.is_dir():
            region = client.load(path, args.name, args.device, **options)
            return len(region.tensors()), [region]
        try:
            arrays = client.load_checkpoint(path, args.name, args.device, **options)
        except KeyboardInterrupt:
            output.warn(
                f"files that were loaded stay: the same command goes on with the next, and "
                f"'gdrpy rm -r {args.name}' deletes them"
            )
            raise
    regions = dict.fromkeys(array.region for array in arrays.values())
    return len(arrays), [region for region in regions if isinstance(region, BrokerRegion)]


def _compared(regions: list[BrokerRegion], path: Path, output: Output) -> list[str]:
    """The SHA-256 of each region. Raises CommandError if that of its file is another."""
    digests = []
    done, total = 0, sum(region.nbytes for region in regions)
    with output.copying("comparing") as tell:
        for region in regions:
            file = path / str(region.name).rpartition("/")[2] if path.is_dir() else path
            expected = hashlib.sha256()
            for piece in safetensors.image_of(file):
                expected.update(piece)
                done += len(piece)
                tell(done, total)
            found = region.digest()
            if found != expected.hexdigest():
                raise CommandError(
                    f"load: region {region.name!r} has the SHA-256 {found}, and {file} the SHA-256 "
                    f"{expected.hexdigest()}: delete it by "
                    f"'gdrpy rm {'-r ' * path.is_dir()}{region.name}' and load again"
                )
            digests.append(found)
    return digests
