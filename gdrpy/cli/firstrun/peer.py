"""The other processes of a first run: ``python -m gdrpy.cli.firstrun.peer ROLE NUMBER...``.

Each prints ``ready``, or its error, and then lives until it is killed.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import sys
from collections.abc import Callable

import numpy as np

import gdrpy
from gdrpy import cuda
from gdrpy.cli.checks.peer import OURS, THEIRS
from gdrpy.cli.data import Mismatch, Noise, expect, expect_equal
from gdrpy.cli.firstrun.node import PAGE

#: Bytes of each of the owner's pins.
OWNED = 2 << 20


def share(rw: int, ro: int, *seeds: int) -> object:
    """Use both share descriptors of one page, and try what the read-only one must refuse."""
    region = gdrpy.Region.from_fd(rw, gpu=False)
    expect_equal("read by the child", Noise(*seeds, OURS).bytes(PAGE), region.cpu.read())
    _refuse_writing(ro)
    readonly = gdrpy.Region.from_fd(ro, gpu=False, readonly=True)
    theirs = Noise(*seeds, THEIRS).bytes(PAGE)
    region.cpu.write(theirs)
    expect_equal("read through the read-only descriptor", theirs, readonly.cpu.read())
    return region, readonly


def _refuse_writing(ro: int) -> None:
    try:
        mmap.mmap(ro, PAGE).close()
    except PermissionError:
        pass
    else:
        raise Mismatch("the read-only descriptor was mapped for writing")
    mapped = np.frombuffer(mmap.mmap(ro, PAGE, prot=mmap.PROT_READ), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    both = mmap.PROT_READ | mmap.PROT_WRITE
    refused = libc.mprotect(ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(PAGE), both)
    expect(refused == -1 and ctypes.get_errno() == errno.EACCES, "mprotect made it writable")


def owner(device: int) -> object:
    """Hold a pin of each kind, and a mapping of each."""
    gdr = gdrpy.open("gdrdrv")
    held: list[object] = [gdr]
    for revocable in (False, True):
        with cuda.context(device):
            memory = int(cuda.call("cuMemAlloc", OWNED))
        pin = gdr.pin(memory, OWNED, revocable=revocable)
        mapping = pin.map()
        mapping.write(b"owned")
        expect_equal("read by the owner", b"owned", mapping.read(5))
        held += [pin, mapping]
    return held


ROLES: dict[str, Callable[..., object]] = {"share": share, "owner": owner}


def main(role: str, *numbers: str) -> None:
    """Play a role."""
    try:
        _held = ROLES[role](*map(int, numbers))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
