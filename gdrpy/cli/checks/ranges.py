"""Ranges at awkward places: every offset and length, with unchanged neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gdrpy import Mapping, Region
from gdrpy.cli.checks.rig import Rig
from gdrpy.cli.data import expect_equal

#: More than one cache line, for every alignment.
_OFFSETS = range(68)
#: Short lengths, and whole lines with 0 to 7 extra bytes or 5 extra words (gdrcopy's case).
_LENGTHS = (
    *range(1, 16),
    *(lines + extra for lines in (64, 256, 4096) for extra in (*range(8), 5 * 4)),
)
#: Bytes checked on either side of a written range, and around host buffers.
_GUARD = 64
_ROOM = _GUARD + max(_OFFSETS) + max(_LENGTHS) + _GUARD
_PAGE = 4096


def _cases() -> Iterator[tuple[int, int, int]]:
    """(offset, length, host alignment); the alignment changes from case to case."""
    for offset in _OFFSETS:
        for i, length in enumerate(_LENGTHS):
            yield _GUARD + offset, length, (5 * i + offset) % 64


def writes_anywhere(rig: Rig) -> None:
    """Mapping.write at every offset and length changes its range and nothing beside it."""
    region = rig.region(_ROOM)
    expected = rig.random(_ROOM)
    source = rig.random(_ROOM)
    rig.put(region.ptr, expected)
    for offset, length, align in _cases():
        data = source[align : align + length] ^ np.uint8(offset)
        expected[offset : offset + length] = data
        region.cpu.write(data, offset)
        start, end = offset - _GUARD, offset + length + _GUARD
        got = rig.get(region.ptr + start, end - start)
        expect_equal(f"{length} bytes at offset {offset}", expected[start:end], got, start)
    expect_equal("all of it afterwards", expected, rig.get(region.ptr, _ROOM))


def reads_anywhere(rig: Rig) -> None:
    """Mapping.readinto from every offset and length fills the buffer and nothing beside it."""
    region = rig.region(_ROOM)
    data = rig.random(_ROOM)
    rig.put(region.ptr, data)
    for offset, length, align in _cases():
        start = _GUARD + align
        host = np.full(start + length + _GUARD, 0xA5, np.uint8)
        expected = host.copy()
        expected[start : start + length] = data[offset : offset + length]
        region.cpu.readinto(host[start : start + length], offset)
        expect_equal(f"{length} bytes from {offset}", expected, host, offset - start)


def sub_ranges(rig: Rig) -> None:
    """Mappings of parts of a region that begin and end anywhere."""
    region = rig.region(max(rig.settings.nbytes, 4 * _PAGE))
    last = region.nbytes - 1
    for offset, nbytes in (
        (1, 1),
        (_PAGE - 1, 2),
        (_PAGE, _PAGE),
        (_PAGE + 1, _PAGE + 77),
        (last // 2, _PAGE + 1),
        (last, 1),
        (3, last - 5),
    ):
        with region.map(offset, nbytes) as mapping:
            length = min(nbytes, 2 * _PAGE)
            for at in (0, nbytes - length):
                _part(rig, region, mapping, offset, at, length)


def _part(rig: Rig, region: Region, mapping: Mapping, mapped_at: int, at: int, length: int) -> None:
    """Read, then write, ``length`` bytes at ``at`` of a mapping of the region."""
    where = mapped_at + at
    start, end = max(where - _GUARD, 0), min(where + length + _GUARD, region.nbytes)
    inside = slice(where - start, where - start + length)
    expected = rig.random(end - start)
    rig.put(region.ptr + start, expected)
    what = f"a mapping of {mapping.nbytes} bytes at offset {mapped_at}"
    expect_equal(f"read through {what}", expected[inside], mapping.read(length, at), where)

    expected[inside] = rig.random(length)
    mapping.write(expected[inside], at)
    got = rig.get(region.ptr + start, end - start)
    expect_equal(f"written through {what}", expected, got, start)
