"""Loads a safetensors file into a new region and publishes it under a name. Any number
of processes can then attach to that one copy: broker.get(NAME).tensors() returns the
tensors where they lie in GPU memory.

examples:
  gdrpy load weights.safetensors weights --seal
  gdrpy load weights.safetensors weights --device 1 --mode 0644

exit status:
  0  the region is published
  1  it is not, and nothing changed: memory or permission is missing, or the file is
     not a safetensors file
  2  wrong usage, or no broker: start one with 'gdrpy serve'
"""

from __future__ import annotations

import argparse

from gdrpy.cli import broker
from gdrpy.cli.exits import FAILED, OK, UNUSABLE, CommandError
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.errors import Error


def add_arguments(parser: CommandParser) -> None:
    broker.add_socket(parser)
    parser.add_argument("file", metavar="FILE.safetensors", help="the file to load")
    broker.add_name(parser)
    parser.add_argument("--seal", action="store_true", help="make the region immutable")
    broker.add_new_region(parser)


def run(args: argparse.Namespace, output: Output) -> int:
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
        told = broker.shown(client, info)
    output.line(f"{broker.published(info)}, {tensors} tensors")
    output.finish({**told, "tensors": tensors})
    return OK
