"""``gdrpy load``: a safetensors file into a region that many processes attach to."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gdrpy.cli import broker
from gdrpy.cli.exits import FAILED, OK, UNUSABLE, CommandError
from gdrpy.cli.output import Output
from gdrpy.errors import Error

if TYPE_CHECKING:
    from gdrpy.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add ``load`` to the command line."""
    parser = broker.add_command(
        commands,
        "load",
        run,
        summary="the tensors of a safetensors file into a region",
        description=(
            "Loads a safetensors file into a new region and publishes it under a name, so that\n"
            "any number of processes attach to one copy: broker.get(NAME).tensors() gives them,\n"
            "as they lie in GPU memory."
        ),
        examples=(
            "gdrpy load weights.safetensors weights --seal\n"
            "gdrpy load weights.safetensors weights --device 1 --mode 0644"
        ),
        exit_status=(
            "0  it is published\n"
            "1  it is not: no memory or no right to it, or the file is none; nothing changed"
        ),
    )
    parser.add_argument("file", metavar="FILE.safetensors", help="what to load")
    broker.add_name(parser)
    parser.add_argument("--seal", action="store_true", help="nobody may write it any more")
    broker.add_making(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    """Load and publish."""
    with broker.connect(args) as client:
        try:
            with (
                output.copying(args.name) as tell,
                client.load(
                    args.file,
                    args.name,
                    args.device,
                    mode=args.mode,
                    seal=args.seal,
                    gpu=False,
                    progress=tell,
                ) as region,
            ):
                tensors = len(region.tensors())
        except Error:
            raise
        except OSError as error:
            raise CommandError(f"cannot read {args.file}: {error.strerror}", UNUSABLE) from error
        except ValueError as error:
            raise CommandError(f"{args.file}: {error}", FAILED) from error
        info = client.stat(args.name)
    output.line(f"{broker.published(info)}, {tensors} tensors")
    output.finish({**broker.shown(info), "tensors": tensors})
    return OK
