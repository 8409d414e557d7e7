"""Arrays to and from rows a pitch apart: write_strided and readinto_strided, either way."""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import gdrpy

ROOM = 64 << 10
BACKGROUND = bytes(range(256)) * (ROOM // 256)

few = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def mapping(region: gdrpy.Region):
    """A mapping in the middle of the region, with something in it."""
    with region.map(64, ROOM) as mapping:
        mapping.write(BACKGROUND)
        yield mapping


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Arrays of up to four dimensions, in any order, every element of them or some, backwards too;
    rows of which some are larger than what is gathered at a time.
    """
    dtype = np.dtype(draw(st.sampled_from(["u1", "u2", "u4", "f8", "c16", "S3"])))
    ndim = draw(st.integers(1, 4))
    longest = {1: 40, 2: 60, 3: 20, 4: 8}[ndim]
    shape = draw(st.lists(st.integers(0, longest), min_size=ndim, max_size=ndim))
    steps = draw(st.lists(st.sampled_from([1, 1, 2, -1, -3]), min_size=ndim, max_size=ndim))
    whole = [length * abs(step) for length, step in zip(shape, steps, strict=True)]
    numbers = np.random.default_rng(draw(st.integers(0, 1 << 30))).bytes
    array = np.frombuffer(numbers(int(np.prod(whole)) * dtype.itemsize), dtype).reshape(whole)
    array = array[tuple(slice(None, None, step) for step in steps)]
    return array.transpose(draw(st.permutations(range(ndim))))


def row_bytes(array: np.ndarray) -> int:
    return array.dtype.itemsize * int(np.prod(array.shape[1:]))


def with_rows(array: np.ndarray, pitch: int, offset: int) -> bytes:
    expected = bytearray(BACKGROUND)
    for number in range(len(array)):
        start = offset + number * pitch
        # A slice: an element of "S3" would come as bytes without the zeros at its end.
        expected[start : start + row_bytes(array)] = array[number : number + 1].tobytes()
    return bytes(expected)


def fitting_pitch(array: np.ndarray, gap: int, offset: int) -> int:
    """The bytes of a row and a gap, as large as there is room for; 0 if there is none."""
    nbytes, rows = row_bytes(array), len(array)
    most = (ROOM - offset - nbytes) // max(rows - 1, 1)
    return min(nbytes + gap, most) if most >= nbytes else 0


@few
@given(
    arrays(),
    st.one_of(st.just(0), st.integers(0, 3000)),
    st.integers(0, 130),
    st.sampled_from([None, "mapping", "dma"]),
)
@example(np.array([b"end", b"in\0", b"\0\0\0"]), 0, 0, None)
def test_every_array_arrives_as_its_rows_and_comes_back(region, array, gap, offset, via):
    pitch = fitting_pitch(array, gap, offset)
    if not pitch:
        return
    region.write(BACKGROUND)
    region.write_strided(array, pitch, offset, via)
    assert region.read(ROOM) == with_rows(array, pitch, offset)

    # Into every third element of an array in the other order, the others left alone.
    *others, rows = reversed(array.shape)
    whole = np.zeros((*others, 3 * rows), array.dtype)
    target = whole[..., ::3].transpose()
    assert region.readinto_strided(target, pitch, offset, via) == array.nbytes
    assert target.tobytes() == array.tobytes()
    assert not whole[..., 1::3].tobytes().strip(b"\0")
    assert not whole[..., 2::3].tobytes().strip(b"\0")


class TestWriteStrided:
    def test_is_seen_by_the_gpu_when_it_returns(self, region, gpu_read):
        image = np.arange(256 * 600, dtype=np.uint32).reshape(256, 600)
        region.cpu.write_strided(image, 4096)
        seen = np.frombuffer(gpu_read(region.ptr, 1 << 20), np.uint32).reshape(256, 1024)
        assert np.array_equal(seen[:, :600], image)

    def test_takes_each_element_of_one_dimension_as_a_row(self, mapping):
        numbers = np.array([1, 2, 3], np.uint32)
        mapping.write_strided(numbers[::-1], 100, 8)
        assert [mapping.load(8 + 100 * row) for row in range(3)] == [3, 2, 1]
        assert mapping.read() == with_rows(numbers[::-1], 100, 8)

    def test_takes_buffers_of_any_kind(self, mapping):
        mapping.write_strided(b"abc", 2)
        assert mapping.read(5)[::2] == b"abc"
        mapping.write_strided(data=memoryview(b"abcdef").cast("B", (2, 3)), pitch=4, offset=33)
        assert mapping.read(7, 33) == b"abc$def"
        table = ((ctypes.c_uint16 * 3) * 2)((1, 2, 3), (4, 5, 6))
        mapping.write_strided(table, 8)
        assert mapping.numpy("u2", (2, 4))[:, :3].tolist() == [[1, 2, 3], [4, 5, 6]]

    def test_repeats_a_row_of_a_broadcast_array(self, mapping):
        rows = np.broadcast_to(np.arange(6, dtype=np.uint8), (5, 6))
        mapping.write_strided(rows, 8)
        assert mapping.read() == with_rows(rows, 8, 0)

    def test_may_end_where_the_mapping_does(self, mapping):
        rows = np.ones((2, 100), np.uint8)
        mapping.write_strided(rows, 200, ROOM - 300)
        assert mapping.read() == with_rows(rows, 200, ROOM - 300)

    @pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 2)])
    def test_of_nothing_does_nothing(self, mapping, shape):
        mapping.write_strided(np.zeros(shape), 1 << 62, ROOM)
        assert mapping.read() == BACKGROUND

    def test_in_a_batch_is_there_after_it(self, region, gpu_read):
        with region.cpu.batch():
            region.cpu.write_strided(b"ab", 2)
        assert gpu_read(region.ptr, 3)[::2] == b"ab"

    def test_refuses_a_read_only_mapping(self, region):
        with (
            region.map(0, ROOM, readonly=True) as mapping,
            pytest.raises(gdrpy.ReadOnly, match=r"Mapping\.write_strided"),
        ):
            mapping.write_strided(b"x", 1)


class TestReadintoStrided:
    @pytest.mark.parametrize("pitch", [256, 1280, 1281, 4096])
    def test_finds_what_the_gpu_has_written(self, region, gpu_write, pitch):
        data = np.random.default_rng(pitch).bytes(1 << 20)
        gpu_write(region.ptr, data)
        rows = np.zeros((200, 256), np.uint8)
        assert region.cpu.readinto_strided(rows, pitch, 3) == rows.nbytes
        assert all(
            row.tobytes() == data[3 + pitch * i : 3 + pitch * i + 256] for i, row in enumerate(rows)
        )

    @pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0)])
    def test_of_nothing_does_nothing(self, mapping, shape):
        assert mapping.readinto_strided(np.zeros(shape), 1 << 62, ROOM) == 0

    @pytest.mark.parametrize("buffer", [b"fixed", np.broadcast_to(np.uint8(1), (2, 2))])
    def test_refuses_what_it_cannot_write_to(self, mapping, buffer):
        with pytest.raises((BufferError, ValueError), match="writable|read-only"):
            mapping.readinto_strided(buffer, 8)


@pytest.fixture(scope="module")
def page_locked():
    """A MiB of page-locked host memory."""
    with gdrpy.page_locked(1 << 20) as memory:
        yield memory


@pytest.mark.parametrize("via", ["mapping", "dma"])
class TestLargeArrays:
    """Of which DMA moves several blocks, or rows in parts."""

    @pytest.fixture
    def large(self, contract: None):
        with gdrpy.alloc(24 << 20) as region:
            yield region

    @pytest.mark.parametrize(
        ("shape", "pitch"),
        [((5000, 1000), 1500), ((3, 2_500_000), 3_000_001), ((2_000_000, 1), 5), ((70, 65_537), 0)],
    )
    @pytest.mark.parametrize("step", [1, -2])
    def test_arrive_and_come_back(self, large, gpu_read, via, shape, pitch, step):
        rows, nbytes = shape
        pitch = pitch or nbytes
        array = np.random.default_rng(rows).integers(0, 256, (rows, nbytes * abs(step)), np.uint8)
        array = array[:, ::step]
        large.write_strided(array, pitch, 7, via)
        seen = np.frombuffer(gpu_read(large.ptr + 7, rows * pitch), np.uint8).reshape(rows, pitch)
        assert np.array_equal(seen[:, :nbytes], array)
        target = np.zeros((nbytes, rows), np.uint8).transpose()
        assert large.readinto_strided(target, pitch, 7, via) == rows * nbytes
        assert np.array_equal(target, array)

    def test_arrive_from_page_locked_memory_and_come_back(self, large, page_locked, gpu_read, via):
        array = page_locked.numpy("u1", (256, 4096))[:, :3000]
        array[:] = np.arange(3000) + np.arange(256)[:, None]
        large.write_strided(array, 5000, 3, via)
        seen = np.frombuffer(gpu_read(large.ptr + 3, 256 * 5000), np.uint8).reshape(256, 5000)
        assert np.array_equal(seen[:, :3000], array)
        expected = array.tobytes()
        array[:] = 0
        assert large.readinto_strided(array, 5000, 3, via) == len(expected)
        assert array.tobytes() == expected


class TestRegionViews:
    def test_a_region_without_cpu_view_is_copied_by_dma(self, contract):
        rows = np.arange(35, dtype=np.uint16).reshape(5, 7)
        with gdrpy.alloc(4096, cpu=False) as region:
            region.write(bytes(100))
            region.write_strided(rows, 20, 1)
            target = np.zeros_like(rows)
            region.readinto_strided(target, 20, 1)
            assert np.array_equal(target, rows)
            assert region.read(6, 15) == bytes(6)
            with pytest.raises(gdrpy.MissingView, match="via='mapping' needs a CPU view"):
                region.write_strided(rows, 20, via="mapping")

    def test_a_region_on_the_host_is_copied_by_the_cpu(self, contract):
        with gdrpy.alloc(4096, "cpu") as region:
            region.write_strided(b"abc", 2)
            assert region.read(5)[::2] == b"abc"
            with pytest.raises(gdrpy.MissingView, match="via='dma' needs a GPU view"):
                region.readinto_strided(bytearray(3), 2, via="dma")

    @pytest.mark.parametrize("via", [None, "mapping", "dma"])
    def test_a_read_only_region_is_not_written_to(self, region, via):
        fd = region.export()
        with gdrpy.Region.from_fd(fd, readonly=True) as reader, pytest.raises(gdrpy.ReadOnly):
            reader.write_strided(b"x", 1, via=via)
        os.close(fd)

    def test_an_unknown_way_is_refused(self, region):
        with pytest.raises(ValueError, match="via must be 'mapping', 'dma' or None, not 'bus'"):
            region.write_strided(b"x", 1, via="bus")
        with pytest.raises(ValueError, match="via must be 'mapping', 'dma' or None, not 'bus'"):
            region.readinto_strided(bytearray(1), 1, via="bus")

    def test_a_closed_region_is_refused(self, region):
        region.close()
        for call in CALLS:
            with pytest.raises(gdrpy.Closed, match=r"Region\.(write|readinto)_strided"):
                call(region, bytearray(1), 1)


CALLS = [
    lambda one, rows, *where: one.write_strided(rows, *where),
    lambda one, rows, *where: one.readinto_strided(rows, *where),
]


@pytest.mark.parametrize("call", CALLS)
class TestBoth:
    @pytest.mark.parametrize("via", ["mapping", "dma"])
    def test_refuse_what_lies_outside_the_region(self, region, call, via):
        with pytest.raises(
            ValueError, match=r"Region\..*strided: offset 1048570 \+ 3 rows of 1 by"
        ):
            call(region, bytearray(3), 3, (1 << 20) - 6, via)

    @pytest.mark.parametrize(
        ("pitch", "offset"),
        [(8, ROOM - 23), (8, ROOM + 1), ((ROOM - 8) // 2 + 1, 0), (1 << 62, 0), (8, (1 << 63) - 1)],
    )
    def test_refuse_what_lies_outside(self, mapping, call, pitch, offset):
        message = rf"offset {offset} \+ 3 rows of 8 bytes, each {pitch} after the one before, lie "
        with pytest.raises(
            ValueError, match=rf"strided: {message}outside the {ROOM} bytes there are"
        ):
            call(mapping, np.zeros((3, 8), np.uint8), pitch, offset)
        assert mapping.read() == BACKGROUND

    @pytest.mark.parametrize(
        ("where", "error", "message"),
        [
            ((15,), ValueError, "pitch must be at least the 16 bytes of a row, not 15"),
            ((0,), ValueError, "pitch must be at least the 16 bytes of a row, not 0"),
            ((-16,), ValueError, "pitch must be 0 or more, not -16"),
            ((16, -1), ValueError, "offset must be 0 or more, not -1"),
            ((1 << 63,), ValueError, "pitch 9223372036854775808 does not fit 63 bits"),
            ((16.0,), TypeError, "pitch must be an int, not 16.0"),
            ((16, "0"), TypeError, "offset must be an int, not '0'"),
            ((), TypeError, "needs the argument 'pitch'"),
        ],
    )
    def test_refuse_bad_numbers(self, mapping, call, where, error, message):
        with pytest.raises(error, match=rf"Mapping\.(write|readinto)_strided:? {message}"):
            call(mapping, np.zeros((3, 2)), *where)
        assert mapping.read() == BACKGROUND

    def test_refuse_an_array_without_dimensions(self, mapping, call):
        with pytest.raises(ValueError, match="strided: the array has 0 dimensions, and needs 1 to"):
            call(mapping, np.array(1.0), 8)

    def test_refuse_what_is_no_buffer(self, mapping, call):
        with pytest.raises(
            TypeError, match=r"must be a bytes-like object or an array, not \[\[1\]\]"
        ):
            call(mapping, [[1]], 8)

    def test_refuse_a_closed_mapping(self, region, call):
        mapping = region.map(0, ROOM)
        mapping.close()
        with pytest.raises(gdrpy.Closed, match=r"Mapping\.(write|readinto)_strided"):
            call(mapping, bytearray(1), 1)

    def test_refuse_a_revoked_mapping(self, region, call):
        with region.map(0, ROOM) as mapping:
            mapping._revoke()
            with pytest.raises(gdrpy.Revoked, match=r"Mapping\.(write|readinto)_strided"):
                call(mapping, bytearray(1), 1)

    def test_refuse_the_mapping_of_a_parent_process(self, mapping, call):
        child = os.fork()
        if not child:
            try:
                call(mapping, bytearray(1), 1)
            except gdrpy.Forked:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0

    def test_let_go_of_the_array(self, mapping, call):
        data = bytearray(4)
        call(mapping, data, 1)
        with pytest.raises(ValueError, match="outside"):
            call(mapping, data, 1, ROOM)
        data.append(0)  # which is refused while somebody has it

    def test_let_other_threads_run_and_hold_the_mapping_when_large(self, region, call):
        rows, ended = np.zeros((256, 4096), np.uint8), threading.Event()

        def work() -> None:
            while not ended.is_set():
                call(region.cpu, rows, 4096)

        thread = threading.Thread(target=work)
        thread.start()
        while not region.cpu._users:  # a call that has the GIL is never seen as a user
            pass
        ended.set()
        thread.join()
        assert region.cpu._users == 0
