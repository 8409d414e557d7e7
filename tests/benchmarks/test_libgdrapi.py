"""The benchmark of libgdrapi, on the simulated GPU."""

from __future__ import annotations

import numpy as np
import pytest

import libgdrapi
import libgdrapi_native
from gdrpy import cuda
from libgdrapi_child import KINDS, buffers
from libgdrapi_native import build, opened
from native import NotBuilt
from payload import payload


@pytest.fixture
def gdr(tmp_path):
    """The library, opened in a CUDA context."""
    with cuda.context(0), opened(build(tmp_path)) as gdr:
        yield gdr


class TestPinned:
    @pytest.mark.parametrize("kind", KINDS)
    def test_is_the_memory_of_the_buffer_from_any_byte_on(self, gdr, kind):
        with buffers(kind, 1) as (ptr,):
            data, back = payload(1000), np.zeros(1000, np.uint8)
            pinned = gdr.pin(ptr + 4100, 1 << 16)
            pinned.write(data, 7).once()
            cuda.call("cuMemcpyDtoH", back.ctypes.data, ptr + 4107, back.nbytes)
            assert np.array_equal(back, data)
            back.fill(0)
            pinned.read(back, 7).once()
            assert np.array_equal(back, data)
            pinned.close()

    def test_has_how_long_each_call_took(self, gdr):
        with buffers(KINDS[0], 1) as (ptr,):
            pinned = gdr.pin(ptr, 4096)
            pinned.close()
        calls = pinned.calls
        assert min(calls.pin_ns, calls.map_ns, calls.unmap_ns, calls.unpin_ns) > 0

    def test_of_no_memory_is_refused_with_the_errno(self, gdr):
        with pytest.raises(OSError, match="pin and map: ") as raised:
            gdr.pin(0x1000, 4096)
        assert raised.value.errno > 0


class TestCycles:
    def test_move_the_data_in_and_out(self, gdr):
        with buffers(KINDS[0], 1) as (ptr,):
            data, back = payload(64), np.zeros(64, np.uint8)
            assert gdr.cycles(ptr, 4096, data, back).batch(3) > 0
        assert np.array_equal(back, data)

    def test_that_fail_have_no_time(self, gdr):
        data = payload(64)
        with pytest.raises(OSError, match="a call of pin, map, copy, unmap and unpin failed"):
            gdr.cycles(0x1000, 4096, data, data).batch(1)

    def test_whose_copies_fail_have_no_time(self, gdr):
        too_many = payload(1 << 20)
        with buffers(KINDS[0], 1) as (ptr,), pytest.raises(OSError, match="copy"):
            gdr.cycles(ptr, 4096, too_many, too_many).batch(1)


class TestBuild:
    def test_without_the_library_says_how_to_get_it(self, tmp_path, monkeypatch):
        monkeypatch.setattr(libgdrapi_native, "_LIBRARY", tmp_path / "libgdrapi.so.2")
        with pytest.raises(NotBuilt, match="not built in this checkout: make build"):
            build(tmp_path)


class TestQuickRun:
    def test_has_every_call_of_every_kind_of_memory(self, result):
        found = {
            (one["operation"], one["way"])
            for one in result["measurements"]
            if one["module"] == libgdrapi.MODULE
        }
        assert found == {
            *((operation, kind) for operation in libgdrapi._CALLS.values() for kind in KINDS),
            (libgdrapi.CYCLE, libgdrapi.MODULE),
        }

    def test_leaves_no_descriptor_and_knows_of_no_gpu_memory(self, result):
        start = f"{libgdrapi.MODULE}/{libgdrapi.LEFT}/"
        left = {
            one["id"].removeprefix(start): one["value"]
            for one in result["figures"]
            if one["id"].startswith(start)
        }
        assert left.keys() == {libgdrapi.DESCRIPTORS, libgdrapi.RESIDENT}
        assert left[libgdrapi.DESCRIPTORS] == 0
