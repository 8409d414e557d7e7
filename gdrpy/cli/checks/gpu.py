"""Acts of the GPU: its writes, and signals between it and the CPU."""

from __future__ import annotations

from typing import Any

from gdrpy import Flag, Mapping
from gdrpy.cli.checks.rig import Rig
from gdrpy.cli.data import expect, expect_equal, repeated, windows

#: Seconds to wait for a flag that the GPU sets.
FLAG_TIMEOUT = 5.0

_BYTE = 0x5A
_WORD = 0x8BADF00D


def gpu_writes(rig: Rig) -> None:
    """cuMemsetD8, cuMemsetD32 and cuMemcpyDtoD, read through the mapping."""
    half = max(rig.settings.nbytes // 8 * 4, 4)
    region = rig.region(2 * half)
    rig.on_gpu("cuMemsetD8", region.ptr, _BYTE, half)
    rig.on_gpu("cuMemsetD32", region.ptr + half, _WORD, half // 4)
    _expect_word("cuMemsetD8", region.cpu, 0, half, _BYTE * 0x01010101)
    _expect_word("cuMemsetD32", region.cpu, half, half, _WORD)
    rig.on_gpu("cuMemcpyDtoD", region.ptr, region.ptr + half, half)
    _expect_word("cuMemcpyDtoD", region.cpu, 0, half, _WORD)


def _expect_word(what: str, mapping: Mapping, start: int, nbytes: int, word: int) -> None:
    """``nbytes`` bytes at ``start`` must repeat one word."""
    for offset, length in windows(nbytes):
        got = mapping.read(length, start + offset)
        expect_equal(f"after {what}", repeated(word, offset, length), got, start + offset)


def flags_32(rig: Rig) -> None:
    """32-bit flags, both ways."""
    _signal_both_ways(rig, 4)


def flags_64(rig: Rig) -> None:
    """64-bit flags, both ways."""
    _signal_both_ways(rig, 8)


def _signal_both_ways(rig: Rig, width: int) -> None:
    """A stream waits for the CPU's flag, then sets one that the CPU waits for."""
    region = rig.region(256)
    go, done = region.flag(0, width), region.flag(128, width)
    answer = (1 << 8 * width) - 2
    go.set(0)
    done.set(0)
    stream = rig.stream()
    rig.stack.callback(_release, rig, go, stream)
    go.stream_wait(stream, 1)
    done.stream_write(stream, answer)
    expect(done.get() == 0, "the stream did not wait for the CPU's flag")
    go.set(1)
    got = done.wait(answer, timeout=FLAG_TIMEOUT, op="==")
    expect(got == answer, f"the CPU saw {got:#x} and not the {answer:#x} that the GPU wrote")
    rig.call("cuStreamSynchronize", stream)


def _release(rig: Rig, go: Flag, stream: Any) -> None:
    """Release a stream that still waits, by the driver's copy, and wait for its work.

    The work must not run on released memory.
    """
    rig.put(go.ptr, (1).to_bytes(go.width, "little"))
    rig.call("cuStreamSynchronize", stream)
