"""Memory files of the simulated GPU of which a process has a descriptor for reading only."""

from __future__ import annotations

import errno
import os

import pytest

import gdrpy
from gdrpy._core._mapping import Descriptor
from support import reopened_for_reading


@pytest.fixture
def reader():
    with gdrpy.alloc(4096) as region:
        region.write(b"seen")
        fd = region.export()
        reader = reopened_for_reading(fd)
        os.close(fd)
        yield reader
        os.close(reader)


@pytest.fixture(params=[None, "sim"], autouse=True)
def chosen(request, monkeypatch):
    """By the descriptor's name, or by force."""
    monkeypatch.delenv("GDRPY_BACKEND", raising=False)
    if request.param:
        monkeypatch.setenv("GDRPY_BACKEND", request.param)


class TestDescriptorForReading:
    def test_opens_read_only(self, reader):
        with gdrpy.Region.from_fd(reader, gpu=False, readonly=True) as region:
            assert region.read(4) == b"seen"
            with pytest.raises(gdrpy.ReadOnly):
                region.write(b"x")

    def test_cannot_be_written_through(self, reader):
        with pytest.raises(gdrpy.PermissionDenied, match="gpu=False, readonly=True") as caught:
            gdrpy.Region.from_fd(reader, gpu=False)
        assert caught.value.errno == errno.EACCES

    @pytest.mark.parametrize("readonly", [True, False])
    def test_has_no_gpu_view(self, reader, readonly):
        with pytest.raises(gdrpy.PermissionDenied, match="gpu=False, readonly=True") as caught:
            gdrpy.Region.from_fd(reader, readonly=readonly)
        assert caught.value.errno == errno.EACCES

    def test_adopted_cannot_be_written_through(self, reader):
        fd = os.dup(reader)
        with pytest.raises(gdrpy.PermissionDenied, match="readonly=True"):
            gdrpy.Region._adopt(
                "adopt", Descriptor(fd), 4096, 0, gpu=False, cpu=True, readonly=False
            )
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
