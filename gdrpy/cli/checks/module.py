"""Features of the kernel module: pins that end with their memory, and shared pins."""

from __future__ import annotations

import os

import gdrpy
from gdrpy.cli.checks.rig import Rig
from gdrpy.cli.data import Mismatch, expect, expect_equal

_MIB = 1 << 20


def revocation(rig: Rig) -> None:
    """Memory freed under a pin: one event, stores are refused, the old view shows zeros."""
    gdr = rig.open(rig.settings.backend)
    ptr = int(rig.call("cuMemAlloc", 2 * _MIB))
    try:
        pin = gdr.pin(ptr, 2 * _MIB, revocable=True)
        mapping = pin.map()
        view = mapping.numpy()
        view[:] = 0xFF
        expect(gdr.events() == [], "an event came before the memory was freed")
    finally:
        rig.call("cuMemFree", ptr)
    expect(
        gdr.events() == [gdrpy.pins.Revocation(pin)], "no event reported that the memory was freed"
    )
    try:
        mapping.write(b"\0")
    except gdrpy.Revoked:
        pass
    else:
        raise Mismatch("a write to the freed memory was not refused")
    expect(not view.any(), "the view still shows the memory that was freed")


def shared_pin(rig: Rig) -> None:
    """A pin's descriptor shows the pinned bytes, and a read-only one cannot be mapped to write."""
    offset, nbytes = 70_000, 10_000
    ptr = rig.cuda_memory(_MIB) + offset
    pin = rig.pin(ptr, nbytes)
    data = rig.random(nbytes)
    rig.put(ptr, data)
    fd = pin.export()
    rig.stack.callback(os.close, fd)
    with gdrpy.Region.from_fd(fd, gpu=False) as shared:
        begin = ptr - pin.info.va
        expect_equal("read through the share", data, shared.cpu.read(nbytes, begin))
        data = rig.random(nbytes)
        shared.write(data, begin)
    expect_equal("written through the share", data, rig.get(ptr, nbytes))

    read_only = pin.export(readonly=True)
    rig.stack.callback(os.close, read_only)
    try:
        gdrpy.Region.from_fd(read_only, gpu=False).close()
    except gdrpy.PermissionDenied:
        return
    raise Mismatch("a read-only share was mapped for writing")
