"""The module, through its node: what it pins is the GPU's memory, mapped as it must be."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import select
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from standin import PAGE, SCATTERED, Mode, View, pte, stats

CPU_PAGE = mmap.PAGESIZE

PIN_V2, UNPIN, CB_FLAG, INFO_V2 = 0xC020DA07, 0xC008DA02, 0xC008DA03, 0xC008DA05
VERSION = 0xC008DAFF
FEATURES, PIN_V3, SHARE = 0xC010DA40, 0xC020DA41, 0xC018DA42
REVOCABLE, ZERO_AFTER = 2, 4
READ_ONLY = 1


def call(fd: int, command: int, layout: str, *values: int) -> tuple[int, ...]:
    """An ioctl on a structure packed from values; what it holds afterwards."""
    argument = bytearray(struct.pack(layout, *values))
    fcntl.ioctl(fd, command, argument, True)
    return struct.unpack(layout, argument)


def refused(error: int) -> pytest.RaisesExc[OSError]:
    return pytest.raises(OSError, match=rf"\[Errno {error}\]")


@pytest.fixture
def node() -> Iterator[int]:
    fd = os.open("/dev/gdrdrv", os.O_RDWR | os.O_CLOEXEC)
    yield fd
    os.close(fd)


@pytest.fixture
def pin(node: int, view: View) -> int:
    """A pin of the whole view: its handle."""
    return call(node, PIN_V2, "QQIIQ", view.address, view.size, 0, 0, 0)[-1]


def map_pin(node: int, handle: int, nbytes: int) -> mmap.mmap:
    return mmap.mmap(node, nbytes, offset=handle * CPU_PAGE)


def gpu_bytes(view: View) -> mmap.mmap:
    """The block as its owner sees it."""
    return mmap.mmap(view.fd, view.size)


def address_of(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def in_child(work: Callable[[], object]) -> int:
    """The errno that a forked child meets, 0 if none."""
    pid = os.fork()
    if not pid:
        status = 255
        try:
            work()
            status = 0
        except OSError as error:
            status = error.errno or 254
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class TestNode:
    def test_speaks_version_2_6_for_libraries_from_2_0_on(self, node: int) -> None:
        assert call(node, VERSION, "II", 0, 0) == (2 << 16 | 6, 2 << 16)

    def test_tells_what_it_has_beyond_it(self, node: int) -> None:
        *_, features = call(node, FEATURES, "IIQ", 16, 0, 0)
        assert features & 0b111 == 0b111  # PIN_V3, SHARE, EVENTS

    def test_refuses_what_it_does_not_know(self, node: int) -> None:
        with refused(errno.ENOTTY):
            call(node, 0xC008DA33, "Q", 0)
        with refused(errno.EINVAL):
            call(node, 0xC0087801, "Q", 0)
        with refused(errno.EINVAL):
            call(node, FEATURES, "IIQ", 16, 1, 0)


class TestPin:
    def test_is_mapped_write_combined_onto_the_gpus_memory(
        self, node: int, view: View, pin: int
    ) -> None:
        with map_pin(node, pin, view.size) as mapped, gpu_bytes(view) as memory:
            mapped[3 * PAGE + 5 : 3 * PAGE + 10] = b"bytes"
            assert memory[3 * PAGE + 5 : 3 * PAGE + 10] == b"bytes"
            for page in range(0, view.size, CPU_PAGE):
                assert mapped[page] is not None
                assert pte(address_of(mapped) + page).mode == Mode.WC
        call(node, UNPIN, "Q", pin)

    def test_of_scattered_memory_is_write_combined_in_every_page(self, node: int) -> None:
        with View(pages=8, flags=SCATTERED) as view:
            handle = call(node, PIN_V2, "QQIIQ", view.address, view.size, 0, 0, 0)[-1]
            with map_pin(node, handle, view.size) as mapped:
                modes = set()
                for page in range(0, view.size, PAGE):
                    mapped[page] = 1
                    modes.add(pte(address_of(mapped) + page).mode)
            assert modes == {Mode.WC}
            call(node, UNPIN, "Q", handle)

    def test_is_rounded_out_to_gpu_pages(self, node: int, view: View) -> None:
        handle = call(node, PIN_V2, "QQIIQ", view.address + 100, 10, 0, 0, 0)[-1]
        _, va, size, page, *_ = call(node, INFO_V2, "QQQIIQII", handle, *[0] * 7)
        assert (va, size, page) == (view.address, PAGE, PAGE)
        with refused(errno.EINVAL):
            map_pin(node, handle, PAGE)
        call(node, UNPIN, "Q", handle)

    def test_of_two_buffers_in_one_page_has_two_handles(self, node: int, view: View) -> None:
        handles = {call(node, PIN_V2, "QQIIQ", view.address + at, 8, 0, 0, 0)[-1] for at in (0, 64)}
        assert len(handles) == 2
        for handle in handles:
            call(node, UNPIN, "Q", handle)

    @pytest.mark.parametrize(
        ("offset", "size", "flags"), [(0, 0, 0), (0, PAGE, 64), (0, (1 << 64) - 1, 0)]
    )
    def test_of_a_wrong_range_is_refused(
        self, node: int, view: View, offset: int, size: int, flags: int
    ) -> None:
        with refused(errno.EINVAL):
            call(node, PIN_V2, "QQIIQ", view.address + offset, size, flags, 0, 0)

    def test_is_found_by_its_exact_handle_only(self, node: int, pin: int) -> None:
        for command, layout, rest in ((UNPIN, "Q", ()), (CB_FLAG, "QII", (0, 0))):
            with refused(errno.EINVAL):
                call(node, command, layout, pin + 1, *rest)
        call(node, UNPIN, "Q", pin)
        with refused(errno.EINVAL):
            call(node, UNPIN, "Q", pin)

    def test_is_mapped_once_by_its_handle(self, node: int, view: View, pin: int) -> None:
        with map_pin(node, pin, view.size), refused(errno.EINVAL):
            map_pin(node, pin, view.size)

    def test_belongs_to_the_process_that_made_it(self, node: int, view: View, pin: int) -> None:
        assert in_child(lambda: map_pin(node, pin, view.size)) == errno.EACCES
        assert in_child(lambda: call(node, UNPIN, "Q", pin)) == errno.EACCES

    def test_ends_with_the_node(self, view: View) -> None:
        fd = os.open("/dev/gdrdrv", os.O_RDWR)
        call(fd, PIN_V2, "QQIIQ", view.address, view.size, 0, 0, 0)
        assert stats().pinned_pages == 4
        os.close(fd)
        assert stats().pinned_pages == 0


class TestShare:
    def test_is_mapped_by_ranges_in_another_process(self, node: int, view: View, pin: int) -> None:
        fd = call(node, SHARE, "IIQiI", 24, 0, pin, 0, 0)[3]

        def store() -> None:
            with mmap.mmap(fd, CPU_PAGE, offset=PAGE + CPU_PAGE) as mapped:
                mapped[:5] = b"child"

        assert in_child(store) == 0
        with gpu_bytes(view) as memory:
            assert memory[PAGE + CPU_PAGE :][:5] == b"child"
        os.close(fd)

    def test_read_only_cannot_be_mapped_for_writing(self, node: int, view: View, pin: int) -> None:
        fd = call(node, SHARE, "IIQiI", 24, READ_ONLY, pin, 0, 0)[3]
        with refused(errno.EACCES):
            mmap.mmap(fd, view.size)
        libc = ctypes.CDLL(None, use_errno=True)
        with mmap.mmap(fd, view.size, prot=mmap.PROT_READ) as mapped:
            assert mapped[0] is not None
            lines = Path("/proc/self/maps").read_text().splitlines()
            start = int(next(line for line in lines if "gdrdrv" in line).split("-")[0], 16)
            assert libc.mprotect(ctypes.c_void_p(start), CPU_PAGE, 3) == -1
            assert ctypes.get_errno() == errno.EACCES
        os.close(fd)


class TestRevocation:
    def test_is_told_by_one_event(self, node: int, view: View) -> None:
        flags = REVOCABLE
        handle = call(node, PIN_V3, "IIQQQ", 32, flags, view.address, view.size, 0)[-1]
        mapped = map_pin(node, handle, view.size)
        mapped[0] = 1
        assert select.select([node], [], [], 0)[0] == []
        view.unregister()
        assert select.select([node], [], [], 0)[0] == [node]
        assert struct.unpack("QQII", os.read(node, 1024)) == (handle, 1, 1, 0)
        assert call(node, CB_FLAG, "QII", handle, 0, 0)[1] == 1
        mapped.close()
        call(node, UNPIN, "Q", handle)

    def test_shows_zeros_where_that_was_asked_for(self, node: int, view: View) -> None:
        flags = REVOCABLE | ZERO_AFTER
        handle = call(node, PIN_V3, "IIQQQ", 32, flags, view.address, view.size, 0)[-1]
        with map_pin(node, handle, view.size) as mapped:
            mapped[PAGE] = 7
            view.unregister()
            assert mapped[PAGE] == 0
            mapped[PAGE] = 9
        call(node, UNPIN, "Q", handle)
