"""One region seen several times: two mappings, a read-only one, and another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gdrpy
from gdrpy.cli.checks import peer
from gdrpy.cli.checks.rig import Rig
from gdrpy.cli.data import Difference, Mismatch, Noise, expect, expect_equal, windows

#: Seconds until the second process must have ended.
PEER_TIMEOUT = 60.0


def two_mappings(rig: Rig) -> None:
    """Each of two mappings reads what the other writes; the second begins off a page."""
    region = rig.region()
    start = region.nbytes // 3
    first, second = region.map(), region.map(start)
    for offset, nbytes in windows(second.nbytes):
        data = rig.random(nbytes)
        first.write(data, start + offset)
        expect_equal("read by the second", data, second.read(nbytes, offset), start + offset)
        data = rig.random(nbytes)
        second.write(data, offset)
        expect_equal("read by the first", data, first.read(nbytes, start + offset), start + offset)


def read_only(rig: Rig) -> None:
    """Every kind of store is refused and changes nothing; the GPU's writes show."""
    region = rig.region(64)
    data = rig.random(region.nbytes)
    rig.put(region.ptr, data)
    mapping = region.map(readonly=True)
    expect(mapping.readonly, "the mapping does not call itself read-only")
    expect(not mapping.numpy().flags.writeable, "its numpy view is writable")
    stores: dict[str, Callable[[], None]] = {
        "write": lambda: mapping.write(b"\0" * 8),
        "store": lambda: mapping.store(0, 0),
        "flag.set": lambda: mapping.flag().set(0),
    }
    for name, store in stores.items():
        with suppress(gdrpy.ReadOnly):
            store()
            raise Mismatch(f"{name} was not refused")
    expect_equal("after the refusals", data, rig.get(region.ptr, region.nbytes))
    expect_equal("read through it", data, mapping.read())


def second_process(rig: Rig) -> None:
    """A CPU-only process gets the descriptor, reads our bytes and writes its own."""
    region = rig.region()
    ours = Noise(*rig.seeds, peer.OURS)
    for offset, nbytes in windows(region.nbytes):
        rig.put(region.ptr + offset, ours.bytes(nbytes))
    answer = _ask_peer(rig, region)
    expect(not answer["cuda_loaded"], "the second process loaded CUDA, which it does not need")
    if answer["difference"]:
        found = Difference(**answer["difference"])
        raise Mismatch(f"read by the second process: {found}", found)
    theirs = Noise(*rig.seeds, peer.THEIRS)
    for offset, nbytes in windows(region.nbytes):
        got = rig.get(region.ptr + offset, nbytes)
        expect_equal("written by the second process", theirs.bytes(nbytes), got, offset)


def _ask_peer(rig: Rig, region: gdrpy.Region) -> dict[str, Any]:
    """Run the second process on the region; returns its answer."""
    fd = region.export()
    rig.stack.callback(os.close, fd)
    words = [str(number) for number in (fd, region.nbytes, *rig.seeds)]
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", peer.__name__, *words],
            pass_fds=[fd],
            env=peer.environment(),
            capture_output=True,
            text=True,
            timeout=PEER_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Mismatch(f"the second process did not end within {PEER_TIMEOUT:g} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Mismatch(f"the second process ended with status {done.returncode}: {last}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
