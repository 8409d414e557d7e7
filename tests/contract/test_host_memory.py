"""Regions on host memory: a CPU view like any other, and no GPU view."""

from __future__ import annotations

import errno
import fcntl
import os
import stat

import pytest

import gdrpy
from gdrpy._core._mapping import Descriptor
from gdrpy.memory.view import MappingType
from support import reopened_for_reading

PAGE = os.sysconf("SC_PAGESIZE")


@pytest.fixture
def host(contract: None):
    with gdrpy.alloc(5000, device="cpu") as region:
        yield region


@pytest.fixture
def readonly_fd(host):
    fd = host.export()
    reader = reopened_for_reading(fd)
    os.close(fd)
    yield reader
    os.close(reader)


class TestHostRegion:
    def test_is_written_and_read_as_any_other(self, host):
        host.write(b"hello", 3)
        assert host.read(5, 3) == b"hello"
        view = host.numpy("uint8")
        view[4999] = 7
        assert host.cpu.load(4992, 8) == 7 << 56
        del view
        bell = host.flag(64)
        bell.set(5)
        assert bell.wait(5, timeout=1) == 5

    def test_begins_as_zeros_and_holds_whole_pages(self, host):
        assert host.read() == bytes(5000)
        assert (host.nbytes, host.allocation_size) == (5000, 2 * PAGE)

    def test_lies_on_no_device(self, host):
        assert (host.device, host.location, host.cpu.backend) == (None, "host memory", "host")
        assert host.cpu.mapping_type is MappingType.CACHED
        assert (host.cpu.ptr, host.cpu.device, host.revoked) == (None, None, False)
        assert repr(host) == "<Region of 5000 bytes on host memory, CPU view, host>"

    @pytest.mark.parametrize("gpu", [True, False])
    def test_has_no_gpu_view_whatever_is_asked_for(self, contract, gpu):
        with gdrpy.alloc(64, device="cpu", gpu=gpu) as region:
            with pytest.raises(gdrpy.MissingView, match="host memory has no GPU address"):
                _ = region.ptr
            assert not hasattr(region, "__cuda_array_interface__")
            with pytest.raises(gdrpy.MissingView, match="the word has no GPU view"):
                _ = region.flag().ptr

    def test_without_its_cpu_view_is_refused(self, contract):
        with pytest.raises(ValueError, match="host memory has only the CPU view"):
            gdrpy.alloc(1, device="cpu", cpu=False)

    @pytest.mark.parametrize("nbytes", [0, -1, 1 << 62])
    def test_of_a_size_out_of_range_is_refused(self, contract, nbytes):
        with pytest.raises(ValueError, match="alloc: nbytes must be 1 or more"):
            gdrpy.alloc(nbytes, device="cpu")

    def test_that_no_host_could_hold_is_out_of_memory(self, contract):
        with pytest.raises(gdrpy.OutOfMemory):
            gdrpy.alloc((1 << 62) - 1, device="cpu")

    def test_on_another_word_for_a_device_is_refused(self, contract):
        with pytest.raises(ValueError, match="device must be a CUDA ordinal, .*, not 'gpu'"):
            gdrpy.alloc(1, device="gpu")

    def test_with_a_live_view_stays_open(self, host):
        view = memoryview(host.cpu)
        with pytest.raises(BufferError):
            host.close()
        view.release()
        host.close()
        assert host.closed

    def test_dropped_lives_on_in_its_views(self, contract):
        region = gdrpy.alloc(100, device="cpu")
        region.write(b"still")
        further = region.map(2, 3)
        view = memoryview(region.cpu)
        del region
        assert (bytes(view[:5]), further.read()) == (b"still", b"ill")


def adopt(fd):
    own = Descriptor(os.dup(fd))
    gdrpy.Region._adopt("adopt", own, PAGE, None, gpu=False, cpu=True, readonly=False)


class TestHostDescriptor:
    @pytest.mark.parametrize("gpu", [True, False])
    def test_opens_the_same_bytes(self, host, gpu):
        host.write(b"shared")
        fd = host.export()
        with gdrpy.Region.from_fd(fd, gpu=gpu) as other:
            assert (other.nbytes, other.read(6)) == (2 * PAGE, b"shared")
            assert (other.device, other.location) == (None, "host memory")
            other.write(b"again")
        os.close(fd)
        assert host.read(6) == b"againd"

    def test_is_of_a_fixed_size_and_its_owners_alone(self, host):
        fd = host.export()
        status = os.fstat(fd)
        assert (status.st_size, stat.S_IMODE(status.st_mode)) == (2 * PAGE, 0o600)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == seals
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        assert not os.get_inheritable(fd)
        os.close(fd)

    def test_that_anybody_could_resize_is_refused(self, contract):
        fd = os.memfd_create("gdrpy-host", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, PAGE)
        with pytest.raises(gdrpy.InvalidHandle, match=rf"descriptor {fd} .*can be resized"):
            gdrpy.Region.from_fd(fd)
        os.close(fd)

    @pytest.mark.parametrize("adopted", [False, True])
    def test_of_huge_pages_is_refused(self, contract, adopted):
        fd = os.memfd_create("gdrpy-host", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
        os.ftruncate(fd, 2 << 20)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        with pytest.raises(gdrpy.InvalidHandle, match="can be resized or has huge pages"):
            (adopt if adopted else gdrpy.Region.from_fd)(fd)
        os.close(fd)

    def test_of_less_than_asked_for_is_refused(self, host):
        fd = host.export()
        with pytest.raises(gdrpy.SizeMismatch, match=f"and the allocation has {2 * PAGE}"):
            gdrpy.Region.from_fd(fd, 2 * PAGE + 1)
        os.close(fd)

    @pytest.mark.parametrize("gpu", [True, False])
    def test_for_reading_opens_read_only(self, host, readonly_fd, gpu):
        host.write(b"seen")
        with gdrpy.Region.from_fd(readonly_fd, gpu=gpu, readonly=True) as reader:
            assert reader.read(4) == b"seen"
            with pytest.raises(gdrpy.ReadOnly):
                reader.write(b"x")
            with reader.map() as mapping:
                assert mapping.readonly

    @pytest.mark.parametrize("gpu", [True, False])
    def test_for_reading_cannot_be_written_through(self, readonly_fd, gpu):
        with pytest.raises(gdrpy.PermissionDenied, match="readonly=True") as caught:
            gdrpy.Region.from_fd(readonly_fd, gpu=gpu)
        assert caught.value.errno == errno.EACCES
