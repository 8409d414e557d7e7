"""Arrays of other libraries: what is found out about them."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from gdrpy import cuda
from gdrpy._core import _mapping
from gdrpy.arrays.interop import DeviceArray, device_array, packed_array
from gdrpy.common.dtypes import DTYPES

F32, BF16 = (2, 32), (4, 16)


class Producer:
    """An array of a library that knows DLPack, on device 0 of any kind."""

    def __init__(
        self,
        address,
        shape=(2, 3),
        dtype=F32,
        *,
        kind=2,
        readonly=False,
        owner=None,
        versioned=True,
    ):
        self.device = kind, 0
        self.streams = []
        self._table = address, *self.device, shape, *dtype, readonly, owner, versioned

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None):
        self.streams.append(stream)
        return _mapping.dlpack(*self._table)


class OldProducer(Producer):
    """One of before DLPack 1.0."""

    def __init__(self, address, **table):
        super().__init__(address, versioned=False, **table)

    def __dlpack__(self, *, stream=None):
        return super().__dlpack__(stream=stream)


class Interface:
    """An array of a library that knows the CUDA array interface alone."""

    def __init__(self, **interface):
        self.__cuda_array_interface__ = {"version": 3, **interface}


class TestArrayByDlpack:
    def test_is_described_in_full(self, region):
        found = device_array("call", Producer(region.ptr + 64, (2, 3), BF16))
        assert found._replace(owner=None) == DeviceArray(
            region.ptr + 64, 0, (2, 3), None, DTYPES["BF16"], False, None
        )
        assert found.nbytes == 12

    def test_says_that_it_is_read_only(self, region):
        assert device_array("call", Producer(region.ptr, readonly=True)).readonly is True

    def test_of_a_library_without_versions_is_taken(self, region):
        found = device_array("call", OldProducer(region.ptr, shape=()))
        assert (found.address, found.shape, found.nbytes) == (region.ptr, (), 4)

    def test_is_kept_by_its_owner_alone(self, region):
        owner = object()
        before = sys.getrefcount(owner)
        array = Producer(region.ptr, owner=owner)
        found = device_array("call", array)
        del array
        assert sys.getrefcount(owner) == before + 1
        del found
        assert sys.getrefcount(owner) == before

    def test_is_asked_for_order_on_a_stream_of_gdrpy(self, region):
        array = Producer(region.ptr)
        device_array("call", array)
        assert array.streams[0] > 2

    def test_of_host_memory_is_none(self, region):
        assert device_array("call", np.zeros(3)) is None
        assert device_array("call", Producer(region.cpu.address, kind=1)) is None
        assert device_array("call", Producer(region.ptr, kind=3)) is None

    def test_of_a_simulated_gpus_memory_is_found_though_its_library_says_cpu(self, region):
        found = device_array("call", Producer(region.ptr + 4, kind=1))
        assert (found.address, found.device) == (region.ptr + 4, 0)

    def test_of_another_kind_of_device_is_refused(self, region):
        with pytest.raises(TypeError, match=r"call: the Producer lies on DLPack device \(10, 0\)"):
            device_array("call", Producer(region.ptr, kind=10))

    def test_of_an_unknown_element_type_is_refused(self, region):
        with pytest.raises(TypeError, match=r"DLPack code 3, 64 bits, 1 lanes"):
            device_array("call", Producer(region.ptr, dtype=(3, 64)))

    def test_error_of_its_library_is_passed_on(self, region):
        class Refusing(Producer):
            def __dlpack__(self, **wishes):
                raise BufferError("detach it first")

        with pytest.raises(BufferError, match="detach it first"):
            device_array("call", Refusing(region.ptr))

    def test_capsule_is_taken_once(self, region):
        capsule = region.__dlpack__()
        _mapping.take_dlpack(capsule)
        with pytest.raises(TypeError, match="not an unconsumed DLPack capsule"):
            _mapping.take_dlpack(capsule)
        with pytest.raises(TypeError, match="not an unconsumed DLPack capsule"):
            _mapping.take_dlpack("capsule")


class TestForkedChild:
    def test_takes_host_arrays_for_what_they_are(self, region):
        array = Producer(region.ptr, kind=1)
        child = os.fork()
        if not child:
            try:
                os._exit(device_array("call", array) is not None)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0) == (child, 0)


class TestArrayByInterface:
    def test_is_described_in_full(self, region):
        array = Interface(shape=(3, 5), typestr="<c8", data=(region.ptr, True), strides=(40, 8))
        found = device_array("call", array)
        assert (found.address, found.device, found.shape) == (region.ptr, 0, (3, 5))
        assert (found.strides, found.dtype.name, found.nbytes) == (None, "complex64", 120)
        assert found.readonly is True
        assert found.owner is array

    def test_waits_for_its_stream(self, region):
        with cuda.context(0):
            stream = cuda.call("cuStreamCreate", 1)
            cuda.call("cuMemsetD8Async", region.ptr, 7, region.nbytes, stream)
            device_array(
                "call",
                Interface(shape=(1,), typestr="|u1", data=(region.ptr, False), stream=int(stream)),
            )
            assert region.read(1, region.nbytes - 1) == b"\x07"
            cuda.call("cuStreamDestroy", stream)

    def test_of_the_default_stream_is_taken(self, region):
        array = Interface(shape=(1,), typestr="|u1", data=(region.ptr, False), stream=1)
        assert device_array("call", array).address == region.ptr

    def test_of_no_elements_may_have_no_address(self, region):
        found = device_array("call", Interface(shape=(0,), typestr="|b1", data=(0, False)))
        assert (found.address, found.nbytes, found.dtype.name) == (0, 0, "BOOL")

    @pytest.mark.parametrize("typestr", [">f4", "<V2", "<f3", "<U4"])
    def test_of_an_unknown_element_type_is_refused(self, region, typestr):
        with pytest.raises(TypeError, match="call: gdrpy does not know"):
            device_array("call", Interface(shape=(1,), typestr=typestr, data=(region.ptr, False)))


class TestPackedArray:
    def test_strides_of_single_elements_do_not_count(self, region):
        array = Interface(
            shape=(1, 4, 1), typestr="<f4", data=(region.ptr, False), strides=(999, 4, 0)
        )
        assert packed_array("call", array).strides is None

    def test_with_gaps_is_refused(self, region):
        array = Interface(shape=(2, 4), typestr="<f4", data=(region.ptr, False), strides=(32, 4))
        assert device_array("call", array).strides == (32, 4)
        with pytest.raises(ValueError, match=r"call: the CUDA array is not contiguous"):
            packed_array("call", array)

    def test_object_that_is_no_array_is_none(self):
        assert packed_array("call", "text") is None
