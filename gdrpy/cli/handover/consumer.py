"""Connects to a producer, receives the file descriptor of its GPU memory, opens it,
copies it to the host, compares it with the integers (i * 2 + 1337) ^ 0xDEADBEEF, and
answers. Every step is printed with the calls behind it. With --cpu the process never
loads CUDA: it reads GPU memory through a CPU mapping alone.

examples:
  gdrpy consumer
  gdrpy consumer --cpu

exit status:
  0  the data is right
  1  the data is wrong, or the producer went away or broke the protocol
  2  wrong usage, no producer at the socket, or no backend can be used here
"""

from __future__ import annotations

import argparse
import os
import socket
from contextlib import ExitStack, suppress

from gdrpy import Error, Region
from gdrpy.broker import unix as _unix
from gdrpy.cli import handover, options
from gdrpy.cli.data import Difference, difference
from gdrpy.cli.exits import FAILED, OK
from gdrpy.cli.handover import rendezvous
from gdrpy.cli.handover.steps import ITEMSIZE, Steps, pattern
from gdrpy.cli.header import Header, gpu_header, gpu_words, host_header
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import format_size


def add_arguments(parser: CommandParser) -> None:
    options.add_backend(parser)
    rendezvous.add_socket(parser)
    parser.add_argument("--cpu", action="store_true", help="open the CPU view only, without CUDA")
    parser.option("--timeout", options.seconds, "S", "seconds to wait for the message", "60")


def run(args: argparse.Namespace, output: Output) -> int:
    path = args.socket or rendezvous.default_path()
    steps = Steps(output)
    with ExitStack() as undo:
        peer = undo.enter_context(rendezvous.connect(path, args.timeout))
        steps.add(
            f"Connected to process {_unix.peer_credentials(peer)[0]} at {path}",
            "a Unix socket: the only channel that can carry file descriptors",
        )
        nbytes, fd = handover.receive_offer(peer)
        undo.callback(os.close, fd)
        steps.add(
            f"Received file descriptor {fd} and the size, {format_size(nbytes)}",
            "recvmsg with SCM_RIGHTS: this process now owns the descriptor",
        )
        try:
            header, found = _examine(args, fd, nbytes, steps)
        except (Error, handover.HandoverError):
            _refuse(peer)
            raise
        handover.send_answer(peer, found is None)
        steps.add(
            "Told the producer",
            "it may free its handle: the consumer's own handle keeps the memory",
        )
    steps.add(
        "Cleaned up: view, descriptor and connection",
        "munmap alone" if args.cpu else "munmap, cuMemUnmap, cuMemAddressFree, cuMemRelease",
    )
    if found:
        output.error(f"the data is wrong: {found}")
    output.finish(
        {
            "header": header.json(),
            "size": nbytes,
            "socket": str(path),
            "verified": found is None,
            "steps": steps.done,
        }
    )
    return OK if found is None else FAILED


def _examine(
    args: argparse.Namespace, fd: int, nbytes: int, steps: Steps
) -> tuple[Header, Difference | None]:
    """Open the region, copy it to the host and compare it."""
    if nbytes % ITEMSIZE:
        raise handover.HandoverError(f"{nbytes} bytes are not a whole number of 32-bit integers")
    with Region.from_fd(fd, nbytes, gpu=not args.cpu, backend=args.backend) as region:
        header = _header(args, region)
        where = gpu_words(header.gpu, header.simulated)
        steps.add(
            f"Opened it on {where}: {region!r}",
            "no CUDA in this process: the descriptor is mapped for the CPU"
            if args.cpu
            else "cuMemImportFromShareableHandle, cuMemAddressReserve, cuMemMap, cuMemSetAccess; "
            "and a CPU mapping",
        )
        data = region.read()
        steps.add(
            f"Copied {format_size(len(data))} to the host",
            "loads from the mapping" if args.cpu else "region.read: CPU loads or DMA, by size",
        )
    found = difference(pattern(nbytes // ITEMSIZE), data)
    steps.add(
        f"Compared {nbytes // ITEMSIZE} integers: " + ("all right" if not found else "WRONG"),
        "(i * 2 + 1337) ^ 0xDEADBEEF",
    )
    return header, found


def _header(args: argparse.Namespace, region: Region) -> Header:
    """The header of the run; without CUDA only the GPU's location is known."""
    backend = region.cpu.backend
    if region.device is not None:
        return gpu_header(args.command_line, region.device, backend)
    return host_header(
        args.command_line, gpu=region.location, simulated=backend == "sim", backend=backend
    )


def _refuse(peer: socket.socket) -> None:
    """Tell the producer that the handover failed, if it is still connected."""
    with suppress(handover.HandoverError):
        handover.send_answer(peer, False)
