from __future__ import annotations

import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import gdrpy

EDGE = 70  # past one cache line


@pytest.fixture
def mapping(region: gdrpy.Region) -> gdrpy.Mapping:
    return region.cpu


class TestCopies:
    def test_every_offset_and_length_leaves_the_neighbours_alone(self, region, gpu_read):
        chance = random.Random(7)
        for offset in range(0, EDGE, 3):
            for length in range(EDGE):
                background, data = chance.randbytes(3 * EDGE), chance.randbytes(length)
                region.cpu.write(background)
                region.cpu.write(data, offset)
                expected = background[:offset] + data + background[offset + length :]
                assert region.cpu.read(3 * EDGE) == expected
                assert region.cpu.read(length, offset) == data
        assert gpu_read(region.ptr, 3 * EDGE) == expected

    @pytest.mark.parametrize("nbytes", [4095, 4096, 65535, 65536, 65537, 1 << 20])
    def test_large_ones_arrive_whole(self, region, gpu_read, nbytes):
        data = random.Random(nbytes).randbytes(nbytes)
        region.cpu.write(data)
        assert gpu_read(region.ptr, nbytes) == data
        buffer = bytearray(nbytes)
        assert region.cpu.readinto(buffer) == nbytes
        assert buffer == data

    def test_take_any_contiguous_buffer(self, mapping):
        mapping.write(np.arange(4, dtype=np.uint16))
        assert mapping.read(8) == np.arange(4, dtype=np.uint16).tobytes()
        target = np.empty(4, np.uint16)
        assert mapping.readinto(target) == 8
        assert target.tolist() == [0, 1, 2, 3]

    def test_of_nothing_do_nothing(self, mapping):
        mapping.write(b"")
        mapping.write(b"", mapping.nbytes)
        assert mapping.read(0) == b""
        assert mapping.read(None, mapping.nbytes) == b""
        assert mapping.readinto(bytearray()) == 0

    def test_in_a_batch_are_there_after_it(self, region, gpu_read):
        with region.cpu.batch():
            for index in range(100):
                region.cpu.store(4 * index, index)
        assert gpu_read(region.ptr, 400) == np.arange(100, dtype=np.uint32).tobytes()

    @pytest.mark.parametrize(
        "call",
        [
            lambda one: one.write(b"xy", one.nbytes - 1),
            lambda one: one.read(2, one.nbytes - 1),
            lambda one: one.readinto(bytearray(2), one.nbytes - 1),
            lambda one: one.read(1, one.nbytes + 1),
            lambda one: one.read(one.nbytes + 1),
            lambda one: one.load(one.nbytes),
            lambda one: one.store(one.nbytes - 3, 1),
            lambda one: one.flag(one.nbytes),
            lambda one: one.read(1 << 62),
        ],
    )
    def test_outside_the_mapping_are_refused(self, mapping, call):
        with pytest.raises(ValueError, match=r"lies outside the \d+-byte mapping"):
            call(mapping)

    @pytest.mark.parametrize(
        "call",
        [
            lambda one: one.write(b"x", -1),
            lambda one: one.read(-1),
            lambda one: one.read(1, -1),
            lambda one: one.readinto(bytearray(1), -1),
            lambda one: one.load(-4),
        ],
    )
    def test_with_negative_numbers_are_refused(self, mapping, call):
        with pytest.raises(ValueError, match="must be 0 or more, not -"):
            call(mapping)

    @pytest.mark.parametrize(
        ("call", "error"),
        [
            (lambda one: one.write(), "needs the argument 'data'"),
            (lambda one: one.write(b"", 0, 0), "takes at most 2 arguments, not 3"),
            (lambda one: one.write(b"", of=0), "unexpected or repeated argument 'of'"),
            (lambda one: one.write(b"", data=b""), "unexpected or repeated argument 'data'"),
            (
                lambda one: one.write("text"),
                "Mapping.write: data must be a bytes-like object or an array, not 'text'",
            ),
            (lambda one: one.read(1.5), "Mapping.read: nbytes must be an int, not 1.5"),
            (lambda one: one.store(0, "1"), "Mapping.store: value must be an int, not '1'"),
        ],
    )
    def test_with_wrong_arguments_are_refused(self, mapping, call, error):
        with pytest.raises(TypeError, match=error):
            call(mapping)

    def test_into_read_only_buffers_are_refused(self, mapping):
        with pytest.raises(BufferError):
            mapping.readinto(b"fixed")

    def test_of_scattered_arrays_are_refused(self, mapping):
        with pytest.raises(ValueError, match="not C-contiguous"):
            mapping.write(np.zeros((4, 4))[:, 1])


def on_gpu(ptr, nbytes):
    """Another library's array."""
    shown = {"shape": (nbytes,), "typestr": "|u1", "data": (ptr, False), "version": 3}
    return SimpleNamespace(__cuda_array_interface__=shown)


class TestOverlap:
    """Bytes of a mapping that are copied over themselves: cached memory alone would forgive it."""

    @pytest.mark.parametrize("apart", [-99, -1, 0, 1, 99])
    @pytest.mark.parametrize(
        "copy",
        [
            lambda region, view, offset: region.cpu.write(view, offset),
            lambda region, view, offset: region.cpu.readinto(view, offset),
            lambda region, view, offset: region.cpu.write_strided(view[::-1], 1, offset),
            lambda region, view, offset: region.cpu.readinto_strided(view[::-1], 1, offset),
            lambda region, view, offset: region.cpu.write_many([(offset, view)]),
            lambda region, view, offset: region.cpu.write_many([(offset, b"."), (offset, view)]),
            lambda region, view, offset: region.cpu.scatter([offset], view[None]),
            lambda region, view, offset: region.write(view, offset),
            lambda region, view, offset: region.readinto(view, offset),
            lambda region, view, offset: region.write(view, offset, via="mapping"),
            lambda region, view, offset: region.write(view, offset, via="dma"),
            lambda region, view, offset: region.readinto(view, offset, via="dma"),
            lambda region, view, offset: region.write_strided(view[::-1], 1, offset),
            lambda region, view, offset: region.readinto_strided(view[::-1], 1, offset, via="dma"),
        ],
    )
    def test_is_refused_and_changes_nothing(self, region, copy, apart):
        before = random.Random(apart).randbytes(400)
        region.cpu.write(before)
        view = region.numpy(np.uint8)[150:250]
        with pytest.raises(ValueError, match="overlaps the 100 bytes at offset"):
            copy(region, view, 150 + apart)
        assert region.cpu.read(400) == before

    @pytest.mark.parametrize("apart", [-99, -1, 0, 1, 99])
    @pytest.mark.parametrize("call", ["write", "readinto"])
    def test_of_an_array_on_the_gpu_is_refused_and_changes_nothing(self, region, call, apart):
        before = random.Random(apart).randbytes(400)
        region.cpu.write(before)
        name = "data" if call == "write" else "buffer"
        error = (
            rf"Region\.{call}: {name} lies in the region itself and overlaps the 100 bytes at "
            rf"offset {150 + apart}: copy through other memory"
        )
        with pytest.raises(ValueError, match=error):
            getattr(region, call)(on_gpu(region.ptr + 150, 100), 150 + apart)
        assert region.cpu.read(400) == before

    @pytest.mark.parametrize("apart", [-100, 100])
    def test_of_an_array_on_the_gpu_is_not_that_of_neighbours(self, region, apart):
        data = random.Random(apart).randbytes(400)
        region.cpu.write(data)
        region.write(on_gpu(region.ptr + 150, 100), 150 + apart)
        assert region.cpu.read(100, 150 + apart) == data[150:250]
        assert region.readinto(on_gpu(region.ptr + 150, 100), 150 - apart) == 100
        assert region.cpu.read(100, 150) == data[150 - apart : 250 - apart]

    def test_of_pieces_with_those_that_others_fill_is_refused(self, mapping):
        view = mapping.numpy(np.uint8)
        pieces = [(0, b"ab"), (8, bytes(8)), (100, view[4:6])]
        error = r"pieces\[2\]: data lies in .* itself and overlaps the 102 bytes at offset 0"
        with pytest.raises(ValueError, match=error):
            mapping.write_many(pieces)

    @pytest.mark.parametrize("apart", [-100, 100, 1000])
    def test_is_not_that_of_neighbours(self, region, apart):
        data = random.Random(apart).randbytes(100)
        view = region.numpy(np.uint8)[150:250]
        offset = 150 + apart
        for copy in (
            lambda: region.cpu.write(view, offset),
            lambda: region.cpu.write_strided(view, 1, offset),
            lambda: region.cpu.write_many([(offset, view)]),
            lambda: region.cpu.scatter([offset], view[None]),
            lambda: region.write(view, offset),
        ):
            region.cpu.write(data, 150)
            copy()
            assert region.cpu.read(100, offset) == data
            region.cpu.write(bytes(100), offset)
        region.cpu.write(data, offset)
        assert region.cpu.readinto(view, offset) == 100
        assert region.cpu.read(100, 150) == data


class TestWords:
    @pytest.mark.parametrize(("width", "value"), [(4, 0xFFFFFFFF), (8, (1 << 64) - 2)])
    def test_are_stored_and_loaded_whole(self, mapping, width, value):
        mapping.store(16, value, width)
        assert mapping.load(16, width) == value
        assert mapping.read(width, 16) == value.to_bytes(width, "little")

    @pytest.mark.parametrize(("width", "value"), [(4, -1), (4, 1 << 32), (8, 1 << 64)])
    def test_that_do_not_fit_are_refused(self, mapping, width, value):
        with pytest.raises(ValueError, match=f"does not fit {8 * width} unsigned bits"):
            mapping.store(0, value, width)

    @pytest.mark.parametrize("width", [0, 1, 3, 16])
    def test_of_other_widths_are_refused(self, mapping, width):
        with pytest.raises(ValueError, match=f"width must be 4 or 8 bytes, not {width}"):
            mapping.load(0, width)

    def test_off_their_alignment_are_refused(self, mapping):
        with pytest.raises(ValueError, match="offset 4 is not aligned to the 8-byte word"):
            mapping.load(4, 8)


class TestArrays:
    def test_are_views_of_the_same_bytes(self, mapping):
        array = mapping.numpy(np.int32, (2, 3), offset=8)
        array[:] = [[1, 2, 3], [4, 5, 6]]
        assert mapping.read(24, 8) == np.arange(1, 7, dtype=np.int32).tobytes()

    def test_cover_whole_elements_by_default(self, region):
        with region.map(0, 1001) as mapping:
            assert mapping.numpy(np.float64).shape == (125,)

    def test_of_a_scalar_shape_have_one_element(self, mapping):
        assert mapping.numpy(np.int64, ()).shape == ()

    def test_of_objects_are_refused(self, mapping):
        with pytest.raises(
            TypeError, match=r"Mapping\.numpy: dtype object holds references to obj"
        ):
            mapping.numpy(object)

    def test_of_a_shape_in_the_place_of_a_type_names_the_argument(self, mapping):
        with pytest.raises(TypeError, match=r", not \(2, 2\): did you mean shape=\(2, 2\)\?$"):
            mapping.numpy((2, 2))

    @pytest.mark.parametrize(
        ("dtype", "shape", "offset"),
        [
            ("f4", None, 2),
            ("f4", None, -4),
            ("u1", 2, (1 << 20) - 1),
            ("u1", -1, 0),
            ("u1", None, 1 << 21),
        ],
    )
    def test_that_do_not_fit_are_refused(self, mapping, dtype, shape, offset):
        with pytest.raises(ValueError, match=r"Mapping\.numpy"):
            mapping.numpy(dtype, shape, offset)


class TestThreads:
    def test_write_and_read_their_own_parts_at_once(self, mapping):
        failures = []

        def work(number: int) -> None:
            chance = random.Random(number)
            start = number * (128 << 10)
            for _ in range(20):
                data = chance.randbytes(chance.randrange(1, 128 << 10))
                mapping.write(data, start)
                if mapping.read(len(data), start) != data:
                    failures.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []

    def test_closing_under_a_waiting_thread_is_refused(self, region):
        mapping = region.map()
        flag = mapping.flag()
        flag.set(0)
        entered = threading.Event()

        def wait() -> None:
            entered.set()
            flag.wait(1, timeout=60)

        thread = threading.Thread(target=wait)
        thread.start()
        entered.wait()
        while not mapping._users:  # the thread is between the event and the wait
            pass
        with pytest.raises(BufferError, match=r"still use the mapping \(1 in all\)"):
            mapping.close()
        flag.set(1)
        thread.join()
        mapping.close()
        with pytest.raises(gdrpy.Closed):
            flag.get()
