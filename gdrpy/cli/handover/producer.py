"""Allocates GPU memory, fills it with the integers (i * 2 + 1337) ^ 0xDEADBEEF, sends its
file descriptor over a Unix socket to the first consumer that connects, and waits for
the answer. Every step is printed with the calls behind it.

examples:
  gdrpy producer                 # then, in another terminal: gdrpy consumer
  gdrpy producer --count 1000 --socket /run/user/1000/demo.sock

exit status:
  0  the consumer found the data right
  1  the consumer found it wrong, went away, or did not come in time
  2  wrong usage, no backend can be used here, or another producer has the socket
"""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack

import gdrpy
from gdrpy.broker import unix as _unix
from gdrpy.cli import handover, hostmemory, options
from gdrpy.cli.exits import FAILED, OK
from gdrpy.cli.handover import rendezvous
from gdrpy.cli.handover.steps import ITEMSIZE, Steps, pattern
from gdrpy.cli.header import gpu_header, gpu_words
from gdrpy.cli.options import CommandParser
from gdrpy.cli.output import Output
from gdrpy.cli.sizes import format_size

#: Host memory that making the integers takes, in multiples of their size.
_HOST_COPIES = 5


def add_arguments(parser: CommandParser) -> None:
    options.add_gpu(parser)
    rendezvous.add_socket(parser)
    parser.option("--count", options.positive_number, "N", "how many 32-bit integers", "262144")
    about = "seconds to wait for a consumer, and for its answer"
    parser.option("--timeout", options.seconds, "S", about, "60")


def run(args: argparse.Namespace, output: Output) -> int:
    path = args.socket or rendezvous.default_path()
    steps = Steps(output)
    with ExitStack() as undo:
        region = undo.enter_context(
            gdrpy.alloc(args.count * ITEMSIZE, args.device, backend=args.backend)
        )
        header = gpu_header(args.command_line, args.device, region.cpu.backend)
        copies = _HOST_COPIES + bool(header.simulated)
        hostmemory.require(region.nbytes * copies, simulated=header.simulated)
        steps.add(
            f"Allocated {format_size(region.nbytes)} on device {args.device}, "
            f"{gpu_words(header.gpu, header.simulated)}, as one allocation of "
            f"{format_size(region.allocation_size)}",
            "cuMemGetAllocationGranularity, cuMemCreate; then, for an address on the GPU, "
            "cuMemAddressReserve, cuMemMap, cuMemSetAccess",
        )
        steps.add(
            f"Mapped it for the CPU through the {region.cpu.backend} backend: {region.cpu!r}",
            "a mapping: plain CPU stores land in GPU memory",
        )
        region.write(pattern(args.count))
        steps.add(
            f"Filled it with {args.count} integers, (i * 2 + 1337) ^ 0xDEADBEEF",
            "region.write: CPU stores through the mapping, fenced before it returns",
        )
        fd = region.export()
        undo.callback(os.close, fd)
        steps.add(
            f"Exported it as file descriptor {fd}",
            "cuMemExportToShareableHandle: whoever holds the descriptor holds the memory",
        )
        listener, replaced = rendezvous.listen(path, undo)
        steps.add(
            f"Listening at {path}" + (", in place of a stale socket" if replaced else ""),
            "a Unix socket of mode 0600: only this user may connect; start 'gdrpy consumer' now",
        )
        peer = undo.enter_context(rendezvous.accept(listener, args.timeout))
        steps.add(
            f"Process {_unix.peer_credentials(peer)[0]} connected",
            "SO_PEERCRED: the kernel, not the peer, says who it is",
        )
        handover.send_offer(peer, region.nbytes, fd)
        steps.add(
            "Sent it the descriptor and the size",
            "sendmsg with SCM_RIGHTS: the kernel gives the other process a duplicate",
        )
        good = handover.receive_answer(peer)
        steps.add(
            "It answered: the data is " + ("right" if good else "WRONG"),
            "until here this process had to keep the memory; now the consumer's handle would",
        )
    steps.add(
        "Cleaned up: socket, descriptor, mapping and memory",
        "munmap, cuMemUnmap, cuMemAddressFree, cuMemRelease: the last holder frees it",
    )
    output.finish(
        {
            "header": header.json(),
            "count": args.count,
            "socket": str(path),
            "verified": good,
            "steps": steps.done,
        }
    )
    return OK if good else FAILED
