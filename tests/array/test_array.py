"""Arrays: elements, shapes and the ways to them."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import gdrpy
from gdrpy.common.dtypes import DTYPES

NATIVE = [dtype for dtype in DTYPES.values() if dtype.native]
FOREIGN = {
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}


class TestElementType:
    @pytest.mark.parametrize("dtype", NATIVE, ids=lambda dtype: dtype.name)
    def test_is_named_as_numpy_or_as_safetensors_does(self, region, dtype):
        kind = np.dtype(dtype.array_name)
        for name in (dtype.name, dtype.array_name, kind, kind.type):
            elements = region.array((2, 5), name)
            assert elements.dtype == dtype.name
            assert elements.nbytes == 10 * kind.itemsize
            assert elements.numpy().dtype == kind

    @pytest.mark.parametrize("name", FOREIGN)
    def test_that_numpy_lacks_comes_from_ml_dtypes(self, region, name):
        elements = region.array((4,), FOREIGN[name])
        assert elements.dtype == name
        elements.write(np.array([0.5, 1, 2, 4], FOREIGN[name]))
        assert elements.numpy().dtype == FOREIGN[name]
        assert elements.read().astype(float).tolist() == [0.5, 1, 2, 4]

    @pytest.mark.parametrize(("name", "bits"), [("BF16", "U16"), ("F8_E4M3", "U8")])
    def test_that_numpy_lacks_needs_ml_dtypes(self, region, monkeypatch, name, bits):
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        elements = region.array((4,), name)
        for use in (elements.numpy, elements.read):
            with pytest.raises(TypeError, match=f"pip install ml_dtypes, .* {bits}$"):
                use()

    @pytest.mark.parametrize("dtype", ["F128", "complex64", None, 3, "M8[s]", object, [("a", 1)]])
    def test_that_is_none_is_refused(self, region, dtype):
        with pytest.raises(TypeError, match=r"Region.array: dtype must be one of BOOL, U8"):
            region.array((1,), dtype)

    def test_that_is_mistyped_is_suggested(self, region):
        for take in (lambda name: region.array(1, name), region.numpy):
            with pytest.raises(TypeError, match=r", not 'flaot32': did you mean 'float32'\?$"):
                take("flaot32")

    def test_of_the_other_byte_order_is_refused(self, region):
        with pytest.raises(TypeError, match="other byte order"):
            region.array((1,), ">f4")


class TestShape:
    def test_may_be_one_length(self, region):
        assert region.array(3, "F32").shape == (3,)

    def test_that_is_not_given_is_all_that_fits(self, region):
        whole, rest = region.array(), region.array(None, "F32", region.nbytes - 9)
        assert (whole.dtype, whole.shape) == ("U8", (region.nbytes,))
        assert (rest.shape, rest.nbytes) == ((2,), 8)

    def test_of_nothing_is_one_element(self, region):
        elements = region.array((), "F64", 8)
        elements.write(2.5)
        assert (elements.nbytes, elements.read().shape, float(elements.numpy())) == (8, (), 2.5)

    def test_with_a_length_of_0_has_no_bytes(self, region):
        elements = region.array((4, 0), "F32", region.nbytes)
        elements.write(np.empty((4, 0), np.float32))
        assert (elements.nbytes, elements.read().shape, elements.numpy().shape) == (
            0,
            (4, 0),
            (4, 0),
        )

    def test_reaches_to_the_last_byte(self, region):
        region.array((1,), "U16", region.nbytes - 2).write(np.array([0x1234], np.uint16))
        assert region.read(2, region.nbytes - 2) == b"\x34\x12"

    @pytest.mark.parametrize("shape", [(-1,), (1 << 62,), (1,) * 65])
    def test_that_is_none_is_refused(self, region, shape):
        with pytest.raises(ValueError, match="a shape is up to 64 lengths"):
            region.array(shape, "U8")

    @pytest.mark.parametrize("shape", [(1.0,), "12", (True,)])
    def test_of_the_wrong_type_is_refused(self, region, shape):
        with pytest.raises(TypeError, match="shape must be an int"):
            region.array(shape, "U8")

    @pytest.mark.parametrize(
        ("shape", "offset"), [((1 << 18, 1), 4), ((1 << 18,), 1), ((1 << 40, 1 << 40), 0), (1, -1)]
    )
    def test_outside_the_region_is_refused(self, region, shape, offset):
        with pytest.raises(ValueError, match=r"Region\.array: offset .* lies outside"):
            region.array(shape, "F32", offset)


class TestCopies:
    def test_of_a_strided_array_are_packed(self, region):
        array = np.arange(24, dtype=np.int32).reshape(4, 6)[::2, ::3]
        region.array((2, 2), "I32").write(array)
        assert region.numpy(np.int32)[:4].tolist() == [0, 3, 12, 15]

    def test_of_another_element_type_are_refused(self, region):
        with pytest.raises(TypeError, match="dtype is F64, and this Array's F32"):
            region.array((2,), "F32").write(np.zeros(2))

    @pytest.mark.parametrize("shape", [(3,), (1, 2), ()])
    def test_of_another_shape_are_refused(self, region, shape):
        with pytest.raises(ValueError, match=r"and this Array's \(2,\)"):
            region.array((2,), "F32").write(np.zeros(shape, np.float32))

    def test_to_a_read_only_region_are_refused(self, readonly_region):
        with pytest.raises(gdrpy.ReadOnly):
            readonly_region.array((2,), "U8").write(np.zeros(2, np.uint8))

    def test_need_no_cpu_view(self, backend):
        with gdrpy.alloc(1 << 20, cpu=False) as region:
            elements = region.array((100, 100), "F32", 3)
            array = np.arange(10_000, dtype=np.float32).reshape(100, 100)
            elements.write(array)
            assert np.array_equal(elements.read(), array)
            with pytest.raises(gdrpy.MissingView, match="cpu=True"):
                elements.numpy()

    def test_reach_elements_that_are_not_aligned(self, region):
        elements = region.array((2,), "F32", 1)
        elements.write(np.array([1, 2], np.float32))
        assert elements.read().tolist() == [1, 2]
        with pytest.raises(ValueError, match="offset 1 is not aligned"):
            elements.numpy()


class TestGpuViewOfAnArray:
    def test_begins_at_its_offset(self, region, gpu_read):
        elements = region.array((2,), "F32", 16)
        elements.write(np.array([1, 2], np.float32))
        assert elements.ptr == region.ptr + 16
        assert gpu_read(elements.ptr, 8) == np.array([1, 2], np.float32).tobytes()

    def test_is_missing_where_the_region_lacks_it(self, readonly_region):
        elements = readonly_region.array((2,), "F32")
        with pytest.raises(gdrpy.MissingView, match="gpu=True"):
            _ = elements.ptr
        assert not hasattr(elements, "__cuda_array_interface__")


class TestCudaArrayInterface:
    @pytest.fixture(autouse=True)
    def _(self, as_on_a_real_gpu):
        pass

    def test_names_the_gpu_view(self, region):
        assert region.array((2, 3), "F16", 6).__cuda_array_interface__ == {
            "shape": (2, 3),
            "typestr": "<f2",
            "data": (region.ptr + 6, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def test_of_a_region_names_its_bytes(self, region):
        interface = region.__cuda_array_interface__
        assert (interface["shape"], interface["typestr"]) == ((1 << 20,), "|u1")
        assert interface["data"] == (region.ptr, False)

    def test_of_a_read_only_region_says_so(self, region):
        fd = region.export()
        with gdrpy.Region.from_fd(fd, readonly=True) as reader:
            for shown in (reader, reader.array((2,), "F16")):
                assert shown.__cuda_array_interface__["data"] == (reader.ptr, True)
        os.close(fd)

    def test_of_no_elements_has_no_address(self, region):
        assert region.array(0, "F16").__cuda_array_interface__["data"] == (0, False)

    @pytest.mark.parametrize("name", FOREIGN)
    def test_is_missing_for_elements_without_type_string(self, region, name):
        with pytest.raises(AttributeError, match=f"cannot say {name}: use from_dlpack"):
            _ = region.array((2,), name).__cuda_array_interface__

    def test_is_missing_where_elements_are_not_aligned(self, region):
        with pytest.raises(AttributeError, match="offset 1 is not aligned"):
            _ = region.array((2,), "F16", 1).__cuda_array_interface__


class TestCudaArrayInterfaceOfTheSimulatedGpu:
    def test_is_missing_and_says_what_is_there_instead(self, region):
        for shown in (region, region.array((2,), "F16")):
            with pytest.raises(AttributeError, match=r"is host memory, .*: use from_dlpack"):
                _ = shown.__cuda_array_interface__


class TestNumber:
    @pytest.mark.parametrize(
        ("dtype", "value"), [("U8", 53), ("I32", 875770417), ("F64", 1.5), ("BF16", 2.0), ("U8", 0)]
    )
    def test_is_that_of_the_one_element(self, region, dtype, value):
        array = region.array((1, 3), dtype)
        array[0, 1] = value
        element = array[0, 1]
        assert (int(element), float(element), bool(element)) == (
            int(value),
            float(value),
            bool(value),
        )

    @pytest.mark.parametrize(
        ("dtype", "value"),
        [
            *[("U8", value) for value in (256, -1, 300.0, 1.5, float("nan"), float("inf"), 10**30)],
            ("I8", -0.5),
            ("BOOL", 2),
            *[("I64", value) for value in (1 << 63, -1e19)],
            *[("F16", 1e6), ("F32", 1e300), ("F8_E4M3", 1000), ("F64", 10**400)],
        ],
    )
    def test_that_the_type_does_not_hold_is_refused(self, region, dtype, value):
        array = region.array(2, dtype)
        array[:] = 1
        why = rf"^Array\[...\]: {dtype} does not hold {re.escape(str(value))[:40]}"
        with pytest.raises(ValueError, match=why):
            array[:] = value
        assert [int(element) for element in array] == [1, 1]

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, 65504, True])
    def test_that_the_type_holds_is_stored(self, region, value):
        array = region.array((), "F16")
        array[...] = value
        assert str(array.item()) == str(float(value))

    @pytest.mark.parametrize("value", [-3, -3.0, np.float32(-3), np.int64(-3), Fraction(-3)])
    def test_of_any_kind_is_stored_in_each_element(self, region, value):
        for dtype in ("I8", "F32", "BF16"):
            array = region.array((2, 2), dtype)
            array[0], array[1] = value, 2
            assert array.read().tolist() == [[-3, -3], [2, 2]]

    def test_of_integers_is_an_index(self, region):
        lengths = region.array(2, "I64")
        lengths[:] = 3
        assert range(4)[lengths[0]] == 3
        assert np.zeros(lengths[0]).shape == (3,)
        with pytest.raises(TypeError, match="index it"):
            range(4)[lengths[:1]]
        with pytest.raises(TypeError, match="float"):
            range(4)[region.array((), "F32")]

    @pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2,)])
    def test_bytes_are_the_elements(self, region, shape):
        array = region.array(shape, "I32")
        array[...] = 7
        assert bytes(array) == array.read().tobytes()
        if shape:
            assert bytearray(array) == array.read().tobytes()

    @pytest.mark.parametrize("convert", [int, float, bool])
    @pytest.mark.parametrize("shape", [(2,), (0,), (1, 2)])
    def test_of_several_elements_or_none_is_refused(self, region, convert, shape):
        why = rf"^{convert.__name__}: an Array of shape .* is not one element: index it"
        with pytest.raises(TypeError, match=why):
            convert(region.array(shape, "U8"))

    def test_of_elements_is_the_length(self, region):
        assert len(region.array((3, 2), "U8")) == len(list(region.array((3, 2), "U8"))) == 3
        with pytest.raises(TypeError, match="has no length"):
            len(region.array((), "U8"))
        with pytest.raises(TypeError, match="has no length"):
            iter(region.array((), "U8"))


class TestComparison:
    @pytest.mark.parametrize("other", [1, 1.0, [1], (1,)])
    def test_with_numbers_is_refused(self, region, other):
        with pytest.raises(TypeError, match="==: an Array compares no elements"):
            _ = region.array((1,), "U8") == other

    def test_with_other_objects_is_that_of_objects(self, region):
        array = region.array((1,), "U8")
        for other in (None, "text", object()):
            assert (array == other, array != other) == (False, True)

    def test_with_itself_and_another_array(self, region):
        array = region.array((1,), "U8")
        assert array == array
        assert len({array, array}) == 1
        with pytest.raises(TypeError, match="compare its numpy"):
            _ = array == region.array((1,), "U8")
        with pytest.raises(TypeError, match="in: an Array compares no elements"):
            _ = 1 in array


class TestBuffer:
    def test_has_the_elements_of_an_array(self, region):
        view = memoryview(region.array((2, 3), "F16", 6))
        assert (view.format, view.shape, view.readonly) == ("e", (2, 3), False)
        region.write(np.float16([1.5]), 6)
        assert np.asarray(view)[0, 0] == 1.5

    def test_has_the_bytes_of_a_region(self, region):
        view = memoryview(region)
        view[:5] = b"hello"
        assert (view.format, view.nbytes, region.read(5)) == ("B", 1 << 20, b"hello")

    def test_keeps_the_region_open(self, region):
        view = memoryview(region.array(4, "U8"))
        with pytest.raises(BufferError, match=r"Region\.close: .* \(1 of "):
            region.close()
        view.release()
        region.close()

    def test_outlives_the_region_object(self, backend):
        view = memoryview(gdrpy.alloc(4096).array((2,), "U8"))
        view[1] = 3
        assert bytes(view[1:]) == b"\x03"

    def test_of_no_elements_is_empty(self, region):
        assert memoryview(region.array((4, 0), "F32", region.nbytes)).nbytes == 0

    def test_of_a_read_only_view_is_read_only(self, readonly_region):
        for shown in (readonly_region, readonly_region.array(4, "U8")):
            assert memoryview(shown).readonly
            with pytest.raises(TypeError, match="not writable"):
                ctypes.c_char.from_buffer(shown)

    @pytest.mark.parametrize("name", FOREIGN)
    def test_of_elements_without_a_letter_is_refused(self, region, name):
        with pytest.raises(BufferError, match=f"a buffer cannot say {name}: use from_dlpack, or"):
            memoryview(region.array((2,), name))

    def test_without_a_cpu_view_is_refused(self, backend):
        with gdrpy.alloc(4096, cpu=False) as region:
            for shown in (region, region.array(2, "U8")):
                with pytest.raises(gdrpy.MissingView, match="cpu=True"):
                    memoryview(shown)


class TestNumpy:
    def test_takes_an_array_as_it_is(self, region):
        array = np.asarray(region.array((2, 3), "I64", 8))
        array[:] = 5
        assert region.numpy("int64", 6, 8).tolist() == [5] * 6

    def test_takes_a_region_as_bytes(self, region):
        assert np.shares_memory(np.asarray(region), region.numpy())

    def test_by_the_array_interface_keeps_the_region_open(self, region):
        class Shown:
            __array_interface__ = region.array((2, 3), "F32", 16).__array_interface__

        array = np.asarray(Shown())
        del Shown.__array_interface__
        assert (array.dtype, array.shape, array.flags.writeable) == (np.float32, (2, 3), True)
        assert np.shares_memory(array, region.numpy())
        with pytest.raises(BufferError, match=r"Region\.close: .* \(1 of "):
            region.close()

    def test_by_the_array_interface_finds_a_read_only_view_read_only(self, readonly_region):
        interface = readonly_region.__array_interface__
        assert np.frombuffer(interface["data"], np.uint8).flags.writeable is False
        assert (interface["shape"], interface["typestr"]) == ((1 << 20,), "|u1")

    @pytest.mark.parametrize("name", FOREIGN)
    def test_is_told_what_it_cannot_take(self, region, name):
        with pytest.raises(TypeError, match=f"__array_interface__ cannot say {name}: use from_dlp"):
            np.asarray(region.array((2,), name))

    def test_is_told_that_there_is_no_cpu_view(self, backend):
        with gdrpy.alloc(4096, cpu=False) as region:
            for shown in (region, region.array(2, "U8")):
                with pytest.raises(gdrpy.MissingView, match="cpu=True"):
                    np.asarray(shown)


class TestArray:
    def test_is_described_by_its_repr(self, region):
        elements = region.array((2, 3), "bfloat16", 4)
        assert repr(elements) == f"<Array BF16 (2, 3) at offset 4 of {region!r}>"

    def test_keeps_its_region(self, backend):
        elements = gdrpy.alloc(4096).array((2,), "U8")
        elements.write(np.array([1, 2], np.uint8))
        assert elements.read().tolist() == [1, 2]

    def test_of_a_closed_region_raises_closed(self, region):
        elements = region.array((2,), "U8")
        region.close()
        for use in (
            elements.numpy,
            elements.read,
            lambda: elements.write(np.zeros(2, np.uint8)),
            lambda: elements.ptr,
            lambda: region.array(1, "U8"),
        ):
            with pytest.raises(gdrpy.Closed):
                use()
