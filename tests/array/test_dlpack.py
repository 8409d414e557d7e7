"""Capsules: what they say, and how long they keep the memory."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import gdrpy
from consumer import Consumer
from gdrpy import cuda
from gdrpy._core import _mapping


class TestCapsule:
    def test_is_unversioned_where_no_version_is_asked_for(self, region):
        consumer = Consumer(region.array((2, 3, 4), "F32", 64).__dlpack__())
        assert consumer.name == b"dltensor"
        assert consumer.address == region.ptr + 64
        assert consumer.device == (1, 0)
        assert consumer.dtype == (2, 32, 1)
        assert (consumer.shape, consumer.strides) == ((2, 3, 4), (12, 4, 1))
        consumer.give_back()

    def test_is_versioned_for_a_consumer_of_version_1(self, region):
        consumer = Consumer(region.array((5,), "BF16", 6).__dlpack__(max_version=(1, 0)))
        assert consumer.name == b"dltensor_versioned"
        assert consumer.table.major == 1
        assert consumer.address == region.ptr + 6
        assert consumer.dtype == (4, 16, 1)
        assert (consumer.shape, consumer.strides) == ((5,), (1,))
        assert consumer.readonly is False
        consumer.give_back()

    def test_is_unversioned_for_a_consumer_of_version_0(self, region):
        capsule = region.__dlpack__(max_version=(0, 8))
        assert Consumer(capsule).give_back() is None
        assert "used_dltensor" in repr(capsule)

    def test_of_a_read_only_view_says_so(self, readonly_region):
        consumer = Consumer(readonly_region.__dlpack__(max_version=(1, 1)))
        assert consumer.readonly is True
        consumer.give_back()

    def test_of_a_read_only_view_is_refused_to_a_consumer_that_would_not_see_it(
        self, readonly_region
    ):
        with pytest.raises(BufferError, match=r"max_version=\(1, 0\)"):
            readonly_region.__dlpack__()

    @pytest.mark.parametrize(
        ("dtype", "expected"),
        [
            ("BOOL", (6, 8, 1)),
            ("U8", (1, 8, 1)),
            ("I16", (0, 16, 1)),
            ("F16", (2, 16, 1)),
            ("F64", (2, 64, 1)),
            ("F8_E4M3", (10, 8, 1)),
            ("F8_E5M2", (12, 8, 1)),
        ],
    )
    def test_names_the_element_type(self, region, dtype, expected):
        consumer = Consumer(region.array((), dtype).__dlpack__())
        assert consumer.dtype == expected
        assert consumer.shape == ()
        consumer.give_back()

    def test_has_strides_of_a_packed_array_around_a_length_of_0(self, region):
        consumer = Consumer(region.array((2, 0, 3), "U8").__dlpack__())
        assert (consumer.shape, consumer.strides) == ((2, 0, 3), (3, 3, 1))
        consumer.give_back()


class TestLifetime:
    def test_closing_the_region_under_a_consumer_is_refused(self, region):
        consumer = Consumer(region.__dlpack__())
        with pytest.raises(BufferError, match=r"still use the memory \(1 of "):
            region.close()
        region.write(b"still open")
        consumer.give_back()
        region.close()

    @pytest.mark.parametrize(
        "give_back", ["give_back", "give_back_with_the_gil", "give_back_in_a_foreign_thread"]
    )
    def test_ends_in_any_thread_with_or_without_the_gil(self, region, give_back):
        consumer = Consumer(region.__dlpack__())
        getattr(consumer, give_back)()
        region.close()

    def test_capsule_that_nobody_consumes_ends_with_itself(self, region):
        capsule = region.__dlpack__(max_version=(1, 0))
        with pytest.raises(BufferError):
            region.close()
        del capsule
        capsule = region.__dlpack__()
        del capsule
        region.close()

    def test_consumed_capsule_keeps_nothing(self, region):
        capsule = region.__dlpack__()
        Consumer(capsule).give_back()
        region.close()
        del capsule

    def test_consumer_outlives_the_region_object(self, backend):
        region = gdrpy.alloc(4096)
        region.write(b"kept")
        array = np.from_dlpack(region)
        del region
        gc.collect()
        assert bytes(array[:4]) == b"kept"

    def test_owner_is_referred_to_until_the_end(self, backend):
        owner = np.arange(4)
        capsule = _mapping.dlpack(owner.ctypes.data, 1, 0, (4,), 0, 64, False, owner, False)
        references = sys.getrefcount(owner)
        Consumer(capsule).give_back()
        assert sys.getrefcount(owner) == references - 1

    def test_lasts_over_the_interpreters_end(self):
        code = (
            "import atexit, gdrpy, numpy as np, sys\n"
            "region = gdrpy.alloc(4096)\n"
            "capsule, array = region.__dlpack__(), np.from_dlpack(region)\n"
            "sys.kept = capsule, array, region\n"
        )
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


class TestForkedChild:
    def test_lets_go_of_its_parents_memory_without_touching_it(self):
        code = (
            "import gdrpy, os\n"
            "from types import SimpleNamespace\n"
            "from gdrpy.arrays import array\n"
            "array.cuda = SimpleNamespace(simulated=lambda: False)\n"
            "region = gdrpy.alloc(4096)\n"
            "gpu, cpu = region.__dlpack__(), region.__dlpack__(dl_device=(1, 0))\n"
            "if os.fork() == 0:\n"
            "    del region, gpu, cpu\n"
            "    raise SystemExit(0)\n"
            "assert os.wait()[1] == 0\n"
            "del gpu, cpu\n"
            "region.close()\n"
        )
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def side(backend):
    """A stream that waits for no other."""
    with cuda.context(0):
        stream = cuda.call("cuStreamCreate", 1)
        yield stream
        cuda.call("cuStreamDestroy", stream)


class TestGpuViewOfARegion:
    @pytest.fixture(autouse=True)
    def _(self, as_on_a_real_gpu):
        pass

    def test_is_what_a_consumer_gets_by_default(self, region):
        elements = region.array((3,), "I32", 8)
        assert elements.__dlpack_device__() == region.__dlpack_device__() == (2, 0)
        consumer = Consumer(elements.__dlpack__(stream=1))
        assert consumer.device == (2, 0)
        assert consumer.address == region.ptr + 8
        consumer.give_back()

    def test_gives_way_to_the_cpu_view_where_that_is_asked_for(self, region):
        consumer = Consumer(region.__dlpack__(dl_device=(1, 0)))
        assert consumer.device == (1, 0)
        assert consumer.address == region.cpu.address
        consumer.give_back()
        array = np.from_dlpack(region, device="cpu")
        array[0] = 9
        assert region.read(1) == b"\x09"

    def test_keeps_the_region_open(self, region):
        consumer = Consumer(region.__dlpack__(max_version=(1, 0)))
        with pytest.raises(BufferError, match=r"still use the memory \(1 of "):
            region.close()
        consumer.give_back_in_a_foreign_thread()
        region.close()

    def test_outlives_the_region_object(self, backend, gpu_read):
        region = gdrpy.alloc(4096, cpu=False)
        region.write(b"kept")
        consumer = Consumer(region.__dlpack__())
        del region
        gc.collect()
        assert gpu_read(consumer.address, 4) == b"kept"
        consumer.give_back()

    def test_of_a_read_only_region_says_so_or_is_refused(self, region):
        fd = region.export()
        with gdrpy.Region.from_fd(fd, readonly=True) as reader:
            consumer = Consumer(reader.__dlpack__(max_version=(1, 0)))
            assert (consumer.address, consumer.readonly) == (reader.ptr, True)
            consumer.give_back()
            with pytest.raises(BufferError, match=r"which capsules before DLPack 1.0 cannot say"):
                reader.__dlpack__()
        os.close(fd)

    @pytest.mark.parametrize("stream", [-1, 1, 2, 0x7F0000001000])
    def test_takes_every_stream_that_dlpack_knows(self, region, stream):
        Consumer(region.__dlpack__(stream=stream)).give_back()

    @pytest.mark.parametrize("stream", [0, -2])
    def test_refuses_an_ambiguous_stream(self, region, stream):
        with pytest.raises(ValueError, match=f"stream {stream}"):
            region.__dlpack__(stream=stream)

    def test_is_given_as_host_memory_whatever_stream_the_consumer_names(self, region):
        consumer = Consumer(region.__dlpack__(dl_device=(1, 0), stream=1))
        assert consumer.device == (1, 0)
        consumer.give_back()

    def test_is_refused_for_another_device(self, region):
        with pytest.raises(BufferError, match=r"cannot copy to DLPack device \(2, 1\)"):
            region.__dlpack__(dl_device=(2, 1))

    def test_is_copied_to_the_host_where_there_is_no_cpu_view(self, backend):
        with gdrpy.alloc(4096, cpu=False) as region:
            region.write(b"copied")
            consumer = Consumer(region.__dlpack__(dl_device=(1, 0), max_version=(1, 1)))
            assert (consumer.device, consumer.copied) == ((1, 0), True)
            assert ctypes.string_at(consumer.address, 6) == b"copied"
            with pytest.raises(
                BufferError, match=r"not on DLPack device \(1, 0\), but on \(2, 0\)"
            ):
                region.__dlpack__(dl_device=(1, 0), copy=False)
        consumer.give_back()

    def test_is_copied_to_other_gpu_memory_behind_the_consumers_work(self, region, gpu_read, side):
        region.fill(1)
        bell = region.flag(offset=4096)
        bell.set(0)
        bell.stream_wait(side, 1)
        cuda.call("cuMemsetD8Async", region.ptr, 7, 16, side)
        ringing = threading.Thread(target=bell.set, args=(1,))
        ringing.start()
        elements = region.array((2, 2), "I32")
        consumer = Consumer(elements.__dlpack__(stream=int(side), max_version=(1, 0), copy=True))
        ringing.join()
        assert (consumer.device, consumer.shape, consumer.copied) == ((2, 0), (2, 2), True)
        region.close()
        assert gpu_read(consumer.address, 16) == b"\x07" * 16
        consumer.give_back()

    @pytest.mark.parametrize("stream", [None, -1, 1, 2])
    def test_is_copied_for_any_stream(self, region, gpu_read, stream):
        region.write(b"copied")
        consumer = Consumer(region.__dlpack__(stream=stream, copy=True))
        assert gpu_read(consumer.address, 6) == b"copied"
        consumer.give_back()


class TestWish:
    def test_for_a_copy_is_granted_and_told(self, region):
        region.write(b"copied")
        consumer = Consumer(region.__dlpack__(copy=True, max_version=(1, 1)))
        assert (consumer.copied, consumer.readonly) == (True, False)
        region.fill(0)
        region.close()
        assert ctypes.string_at(consumer.address, 6) == b"copied"
        consumer.give_back()

    def test_for_a_copy_of_a_read_only_view_gives_a_writable_one(self, readonly_region):
        consumer = Consumer(readonly_region.__dlpack__(copy=True, max_version=(1, 0)))
        assert consumer.readonly is False
        consumer.give_back()

    def test_for_a_copy_is_granted_to_elements_that_are_not_aligned(self, region):
        region.write(np.float32([1.5]), 2)
        array = np.from_dlpack(region.array((1,), "F32", 2), copy=True)
        assert array.tolist() == [1.5]

    def test_for_a_copy_of_no_elements_is_granted(self, region):
        assert np.from_dlpack(region.array((0, 3), "F32"), copy=True).shape == (0, 3)

    def test_for_no_copy_is_granted(self, region):
        Consumer(region.__dlpack__(copy=False)).give_back()

    def test_for_a_stream_of_the_cpu_is_refused(self, region):
        with pytest.raises(ValueError, match="stream 1"):
            region.__dlpack__(stream=1)

    def test_for_a_stream_that_is_no_number_is_refused(self, region):
        with pytest.raises(TypeError, match="stream must be an int"):
            region.__dlpack__(stream="default")

    def test_for_a_device_that_is_none_is_refused(self, region):
        with pytest.raises(TypeError, match="dl_device must be a pair"):
            region.__dlpack__(dl_device="cpu")

    def test_for_the_gpu_of_a_region_without_gpu_view_is_refused(self, readonly_region):
        with pytest.raises(BufferError, match=r"cannot copy to DLPack device \(2, 0\)"):
            readonly_region.__dlpack__(dl_device=(2, 0))

    def test_for_the_simulated_gpus_memory_gives_the_gpu_view(self, backend):
        with gdrpy.alloc(4096, cpu=False) as region:
            assert region.__dlpack_device__() == (1, 0)
            for wish in (None, (1, 0)):
                consumer = Consumer(region.__dlpack__(dl_device=wish, copy=False))
                assert (consumer.address, consumer.device) == (region.ptr, (1, 0))
                consumer.give_back()

    def test_for_elements_that_are_not_aligned_is_refused(self, region):
        with pytest.raises(BufferError, match=r"offset 2 .* 4 bytes of F32"):
            region.array((1,), "F32", 2).__dlpack__()

    def test_on_a_closed_region_raises_closed(self, region):
        elements = region.array((1,), "F32")
        region.close()
        for use in (elements.__dlpack__, elements.__dlpack_device__, region.__dlpack__):
            with pytest.raises(gdrpy.Closed):
                use()


class TestNumpy:
    def test_shares_the_bytes_of_a_region(self, region):
        array = np.from_dlpack(region)
        assert (array.shape, array.dtype) == ((1 << 20,), np.uint8)
        array[7] = 42
        assert region.read(1, 7) == b"\x2a"

    def test_shares_the_elements_of_a_tensor(self, region):
        array = np.from_dlpack(region.array((2, 3), "I64", 8))
        array[:] = [[1, 2, 3], [4, 5, 6]]
        assert region.numpy("int64", (6,), 8).tolist() == [1, 2, 3, 4, 5, 6]

    def test_finds_a_read_only_view_read_only(self, readonly_region):
        assert not np.from_dlpack(readonly_region).flags.writeable


class TestMapping:
    def test_is_shown_as_the_cpu_sees_it(self, region):
        with region.map(4096, 100) as mapping:
            assert mapping.__dlpack_device__() == (1, 0)
            consumer = Consumer(mapping.__dlpack__())
            assert (consumer.address, consumer.shape) == (mapping.address, (100,))
            with pytest.raises(BufferError, match=r"Mapping\.close: .* \(1 in all\)"):
                mapping.close()
            consumer.give_back()

    def test_is_shared_with_numpy(self, region):
        np.from_dlpack(region.cpu)[3] = 9
        assert region.read(1, 3) == b"\x09"

    def test_that_is_read_only_says_so(self, readonly_region):
        assert not np.from_dlpack(readonly_region.cpu).flags.writeable
        with pytest.raises(BufferError, match=r"max_version=\(1, 0\)"):
            readonly_region.cpu.__dlpack__()

    def test_is_copied_on_demand(self, region):
        region.write(b"copied")
        array = np.from_dlpack(region.cpu, copy=True)
        region.close()
        assert bytes(array[:6]) == b"copied"

    def test_is_not_shown_to_a_gpu(self, region):
        with pytest.raises(BufferError, match=r"Mapping\.__dlpack__: .* device \(2, 0\)"):
            region.cpu.__dlpack__(dl_device=(2, 0))
        with pytest.raises(BufferError, match="copy is False"):
            region.cpu.__dlpack__(dl_device=(2, 0), copy=False)
