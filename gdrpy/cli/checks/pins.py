"""Memory allocated by cuMemAlloc: pinned, mapped, and compared."""

from __future__ import annotations

from gdrpy.cli.checks.rig import Rig
from gdrpy.cli.data import expect_equal, repeated, windows

#: Sizes in bytes so small that CUDA puts all of these into one block.
_SMALL = (4096, 8192, 100, 12348)
_MIB = 1 << 20


def _filled(rig: Rig, nbytes: int, word: int) -> int:
    """Fresh cuMemAlloc memory, filled with a word by the GPU."""
    ptr = rig.cuda_memory(nbytes)
    rig.on_gpu("cuMemsetD32", ptr, word, nbytes // 4)
    return ptr


def small_allocations(rig: Rig) -> None:
    """Each allocation is found in the block that they share, and none touches another."""
    word = 0x9DD00000
    pointers = [_filled(rig, nbytes, word + i) for i, nbytes in enumerate(_SMALL)]
    written = []
    for i, (ptr, nbytes) in enumerate(zip(pointers, _SMALL, strict=True)):
        mapping = rig.pin(ptr, nbytes).map()
        what = f"allocation {i} of {nbytes} bytes"
        expect_equal(f"{what}, read", repeated(word + i, 0, nbytes), mapping.read())
        written.append(rig.random(nbytes))
        mapping.write(written[i])
    for i, (ptr, nbytes) in enumerate(zip(pointers, _SMALL, strict=True)):
        what = f"allocation {i} of {nbytes} bytes"
        expect_equal(f"{what}, written", written[i], rig.get(ptr, nbytes))


def interior_pointer(rig: Rig) -> None:
    """A pin that begins and ends off every page inside an allocation."""
    word, offset, nbytes = 0x9DD10000, 12345, 54321
    ptr = _filled(rig, _MIB, word)
    mapping = rig.pin(ptr + offset, nbytes).map()
    expect_equal("read through the pin", repeated(word, offset, nbytes), mapping.read(), offset)
    expected = repeated(word, 0, _MIB)
    expected[offset : offset + nbytes] = rig.random(nbytes)
    mapping.write(expected[offset : offset + nbytes])
    expect_equal("the whole allocation", expected, rig.get(ptr, _MIB))


def large_allocation(rig: Rig) -> None:
    """An allocation with separate blocks, at least as large as the run's regions."""
    word = 0x9DD20000
    total = max(rig.settings.nbytes // 4 * 4, 4 * _MIB)
    ptr = _filled(rig, total, word)
    mapping = rig.pin(ptr, total).map()
    for offset, nbytes in windows(total):
        expected = repeated(word, offset, nbytes)
        expect_equal("read through the pin", expected, mapping.read(nbytes, offset), offset)
        data = rig.random(nbytes)
        mapping.write(data, offset)
        got = rig.get(ptr + offset, nbytes)
        expect_equal("written through the pin", data, got, offset)
