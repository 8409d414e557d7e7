"""A region made of a descriptor that it owns from then on, as a broker's client makes it."""

from __future__ import annotations

import gc
import os
import weakref
from contextlib import nullcontext
from typing import Any

import pytest

import gdrpy
from gdrpy._core._mapping import Descriptor


class Leased(gdrpy.Region):
    """A region of a class of its own."""


class Lease:
    """Something that a region's memory keeps, and closes when it is detached."""

    closed = False

    def close(self) -> None:
        self.closed = True


def adopt(fd: int, nbytes: int = 4096, device: int | None = 0, **kwargs: Any) -> Leased:
    how = {"gpu": False, "cpu": True, "readonly": False, **kwargs}
    return Leased._adopt("adopt", Descriptor(fd), nbytes, device, **how)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.fixture(params=["device", "cpu"])
def shared(request, contract: None):
    """A region to be opened once more, and where it lies as a broker says it."""
    on_host = request.param == "cpu"
    with gdrpy.alloc(4096, "cpu" if on_host else 0) as region:
        yield region, None if on_host else 0


class TestAdoptedRegion:
    @pytest.mark.parametrize("gpu", [True, False])
    def test_shows_the_same_bytes(self, shared, gpu):
        region, device = shared
        region.write(b"there")
        with adopt(region.export(), 4000, device, gpu=gpu) as other:
            assert (type(other), other.nbytes) == (Leased, 4000)
            assert other.read(5) == b"there"
            other.write(b"here")
            assert other.allocation_size == region.allocation_size
            assert (other.location == "host memory") is (device is None)
            assert other.device == (device if gpu else None)
        assert region.read(5) == b"heree"

    def test_is_exported_and_mapped_again(self, shared):
        region, device = shared
        region.write(b"0123456789")
        with adopt(region.export(), device=device) as other:
            part = other.map(5, 5)
            fd = other.export()
            with gdrpy.Region.from_fd(fd, gpu=False) as third:
                assert (part.read(), third.read(10)) == (b"56789", b"0123456789")
            os.close(fd)
        assert part.closed

    def test_closes_its_descriptor_when_it_is_closed(self, shared):
        region, device = shared
        fd = region.export()
        adopt(fd, device=device).close()
        assert not is_open(fd)

    def test_closes_its_descriptor_when_it_is_dropped(self, shared):
        region, device = shared
        fd = region.export()
        adopt(fd, device=device)
        assert not is_open(fd)

    @pytest.mark.parametrize("gpu", [True, False])
    def test_keeps_its_source_as_long_as_there_is_a_view(self, shared, gpu):
        region, device = shared
        lease = Lease()
        kept = weakref.ref(lease)
        view = adopt(region.export(), device=device, gpu=gpu, source=lease).numpy()
        del lease
        gc.collect()
        assert kept() is not None
        del view
        gc.collect()
        assert kept() is None

    @pytest.mark.parametrize("leaving", [False, True])
    def test_closes_its_source_when_it_is_detached_unless_it_leaves_it(self, region, leaving):
        lease = Lease()
        with adopt(region.export(), gpu=True, source=lease) as other:
            with other._memory.leaving_source() if leaving else nullcontext():
                other.detach()
            assert (lease.closed, other._memory.source) == (not leaving, None)

    def test_keeps_its_source_if_it_cannot_be_detached(self, region):
        lease = Lease()
        with adopt(region.export(), gpu=True, source=lease) as other:
            view = other.numpy()
            with pytest.raises(BufferError), other._memory.leaving_source():
                other.detach()
            assert (lease.closed, other._memory.source) == (False, lease)
            del view

    def test_without_a_cpu_view_copies_by_dma(self, region):
        with adopt(region.export(), gpu=True, cpu=False) as other:
            other.write(b"dma")
            assert other.read(3) == b"dma"
            with pytest.raises(gdrpy.MissingView):
                _ = other.cpu

    def test_may_be_read_only(self, shared):
        region, device = shared
        with (
            adopt(region.export(), device=device, readonly=True) as other,
            pytest.raises(gdrpy.ReadOnly),
        ):
            other.write(b"x")


class TestRefusedAdoption:
    def test_of_more_than_there_is_closes_the_descriptor(self, shared):
        region, device = shared
        fd = region.export()
        with pytest.raises(gdrpy.SizeMismatch, match="adopt: .* bytes were asked for"):
            adopt(fd, region.allocation_size + 1, device)
        assert not is_open(fd)

    @pytest.mark.parametrize("device", [0, None])
    def test_of_a_file_that_can_be_resized_closes_the_descriptor(self, contract, device):
        fd = os.memfd_create("gdrpy-host")
        os.ftruncate(fd, 4096)
        with pytest.raises(gdrpy.InvalidHandle, match="can be resized"):
            adopt(fd, device=device)
        assert not is_open(fd)

    def test_of_something_else_closes_the_descriptor(self, contract):
        fd, other = os.pipe()
        os.close(other)
        with pytest.raises(gdrpy.InvalidHandle, match="a pipe"):
            adopt(fd)
        assert not is_open(fd)
