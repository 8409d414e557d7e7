from __future__ import annotations

import os
import random

import numpy as np
import pytest

import gdrpy
from gdrpy.copies import dma
from gdrpy.copies.tuning import BUILT_IN

EDGES = (1, 3, BUILT_IN.read_dma - 1, BUILT_IN.read_dma, 1 << 20)


@pytest.fixture
def large(contract: None):
    with gdrpy.alloc(2 * EDGES[-1]) as region:
        yield region


class TestRegionCopies:
    @pytest.mark.parametrize("nbytes", EDGES)
    @pytest.mark.parametrize("offset", [0, 13])
    def test_arrive_whole_on_either_side_of_the_thresholds(self, large, gpu_read, nbytes, offset):
        data = random.Random(nbytes).randbytes(nbytes)
        large.write(data, offset)
        assert gpu_read(large.ptr + offset, nbytes) == data
        assert large.read(nbytes, offset) == data
        buffer = np.zeros(nbytes, np.uint8)
        assert large.readinto(buffer, offset) == nbytes
        assert buffer.tobytes() == data

    def test_by_dma_are_seen_by_the_mapping_at_once(self, large):
        for number in range(50):
            data = bytes([number]) * 65536
            large.write(data, 0, via="dma")
            assert large.cpu.read(8, 65528) == bytes([number]) * 8

    def test_by_the_mapping_are_seen_by_dma_at_once(self, large):
        buffer = bytearray(65536)
        for number in range(50):
            large.cpu.write(bytes([number]) * 65536)
            large.readinto(buffer, 0, via="dma")
            assert buffer == bytes([number]) * 65536

    @pytest.mark.parametrize("kind", ["BF16", "F8_E4M3", "F32"])
    @pytest.mark.parametrize("device", [0, "cpu"])
    def test_take_bytes_of_arrays_whose_elements_no_buffer_can_name(self, large, kind, device):
        with gdrpy.alloc(4096, device) as other:
            other.write(bytes(range(64)))
            part = other.array(8, kind, 16)
            large.write(part, 100)
            assert large.read(part.nbytes, 100) == bytes(range(16, 16 + part.nbytes))
            large.write(b"!" * part.nbytes, 200)
            assert large.readinto(part, 200) == part.nbytes
            assert other.read(part.nbytes + 1, 16) == b"!" * part.nbytes + bytes([16 + part.nbytes])

    @pytest.mark.parametrize("nbytes", [8, 1 << 20])
    def test_outside_the_region_are_refused(self, large, nbytes):
        for offset in (large.nbytes - nbytes + 1, -1):
            for call in (
                lambda at: large.write(bytes(nbytes), at),
                lambda at: large.read(nbytes, at),
                lambda at: large.readinto(bytearray(nbytes), at),
            ):
                with pytest.raises(ValueError, match="outside|0 or more"):
                    call(offset)

    def test_to_a_read_only_region_are_refused_whatever_their_size(self, large):
        fd = large.export()
        with gdrpy.Region.from_fd(fd, readonly=True) as reader:
            for nbytes in (8, large.nbytes):
                with pytest.raises(gdrpy.ReadOnly):
                    reader.write(bytes(nbytes))
        os.close(fd)


class TestManyPieces:
    def test_of_any_size_arrive_and_nothing_beside_them(self, large, gpu_read):
        expected = bytearray(random.Random(1).randbytes(large.nbytes))
        large.write(expected)
        pieces = [(0, b"ab"), (7, np.arange(5, dtype="u4")), (99_999, bytearray(b"c" * 70_000))]
        pieces += [(300_001, memoryview(b"d" * 900_000)), (300_000, b""), (large.nbytes - 1, b"e")]
        large.write_many(iter(pieces))
        for offset, data in pieces:
            expected[offset : offset + memoryview(data).nbytes] = bytes(data)
        assert gpu_read(large.ptr, large.nbytes) == expected

    @pytest.mark.parametrize("nbytes", [8, 1 << 20])
    def test_one_of_which_lies_outside_are_refused_whole(self, large, nbytes):
        large.fill(1)
        at = large.nbytes - nbytes + 1
        with pytest.raises(ValueError, match=r"Region\.write_many: pieces\[1\]: offset .*outside"):
            large.write_many([(0, b"x"), (at, bytes(nbytes))])
        assert large.read() == b"\1" * large.nbytes
        untouched = bytearray(1)
        with pytest.raises(ValueError, match=r"Region\.readinto_many: pieces\[1\]: offset .*outsi"):
            large.readinto_many([(0, untouched), (at, bytearray(nbytes))])
        assert untouched == b"\0"

    @pytest.mark.parametrize("via", [None, "mapping", "dma"])
    def test_are_read_and_written_by_any_way(self, large, via):
        expected = bytearray(random.Random(2).randbytes(large.nbytes))
        large.write(expected)
        sizes = [*range(40), 0, 5000, 70_001, 1_000_001, 7]
        found = [(1003 * index, bytearray(size)) for index, size in enumerate(sizes)]
        found.append((large.nbytes - 9, np.zeros((3, 3), "u1")))
        assert large.readinto_many(iter(found), via) == sum(sizes) + 9
        for at, data in found:
            assert bytes(data) == expected[at : at + memoryview(data).nbytes]
        pieces = [(at, bytes(memoryview(data))[::-1]) for at, data in found[:40] + found[-1:]]
        large.write_many(pieces, via=via)
        for at, data in pieces:
            expected[at : at + len(data)] = data
        assert large.read() == expected

    def test_must_be_pairs_with_writable_buffers_to_be_read(self, large):
        bad = (
            ((0, b"bytes"), BufferError, r"pieces\[1\]: buffer must be writable"),
            ((0,), TypeError, r"pieces\[1\] must be a pair \(offset, buffer\), not "),
            ((-1, bytearray(1)), ValueError, r"pieces\[1\]: offset must be 0 or more, not -1"),
        )
        untouched = bytearray(1)
        large.fill(1)
        for piece, error, message in bad:
            with pytest.raises(error, match=rf"Region\.readinto_many: {message}"):
                large.readinto_many([(0, untouched), piece])
        assert untouched == b"\0"
        with pytest.raises(ValueError, match="via must be"):
            large.readinto_many([], "bus")

    def test_of_the_mapping_itself_must_lie_apart(self, large):
        view = memoryview(large.cpu)
        for call, name in ((large.write_many, "data"), (large.readinto_many, "buffer")):
            with pytest.raises(ValueError, match=rf"many: pieces\[1\]: {name} .*overlaps"):
                call([(0, bytearray(1)), (100, view[50:60]), (200, bytearray(1))])
        large.write_many([(100, view[:8]), (104, view[8:16])])

    def test_to_a_read_only_or_closed_region_are_refused(self, large):
        fd = large.export()
        with gdrpy.Region.from_fd(fd, readonly=True) as reader, pytest.raises(gdrpy.ReadOnly):
            reader.write_many([(0, b"x")])
        os.close(fd)
        for call in (reader.write_many, reader.readinto_many):
            with pytest.raises(gdrpy.Closed):
                call([])


@pytest.fixture(params=["mapping", "dma", "host"])
def filled(request, contract: None):
    """A region of ones, filled by the CPU, by the GPU, or on the host."""
    nbytes = 600_000
    where = "cpu" if request.param == "host" else 0
    with gdrpy.alloc(nbytes, where, cpu=request.param != "dma") as region:
        region.write(b"\x01" * nbytes)
        yield region


class TestFill:
    @pytest.mark.parametrize(
        ("offset", "nbytes"), [(0, 600_000), (1, 1), (7, 262_144), (3, 262_145), (599_999, 1)]
    )
    def test_sets_the_range_and_nothing_beside_it(self, filled, offset, nbytes):
        filled.fill(0xA5, offset, nbytes)
        expected = bytearray(b"\x01" * 600_000)
        expected[offset : offset + nbytes] = b"\xa5" * nbytes
        assert filled.read() == expected

    def test_goes_to_the_end_unless_told_otherwise(self, filled):
        filled.fill(0, 599_990)
        assert filled.read(offset=599_985) == b"\x01" * 5 + bytes(10)
        filled.fill(255)
        assert filled.read() == b"\xff" * 600_000

    def test_with_a_value_that_closes_the_region_is_refused(self, backend):
        class Byte:
            def __index__(self):
                region.close()
                return 0

        region = gdrpy.alloc(4096)
        with pytest.raises(gdrpy.Closed, match="Region.fill: the Region is closed"):
            region.fill(Byte())

    def test_is_not_overtaken_by_stores_of_a_batch(self, region, monkeypatch):
        order = []
        monkeypatch.setattr(gdrpy.Mapping, "flush", lambda mapping: order.append("flush"))
        monkeypatch.setattr(dma, "fill", lambda *args: order.append("fill"))
        with region.cpu.batch():
            region.cpu.write(b"earlier")
            region.fill(0)
        assert order == ["flush", "fill"]

    def test_of_nothing_changes_nothing(self, filled):
        filled.fill(9, 100, 0)
        filled.fill(9, 600_000)
        assert filled.read() == b"\x01" * 600_000

    @pytest.mark.parametrize("value", [-1, 256])
    def test_with_more_than_a_byte_is_refused(self, filled, value):
        with pytest.raises(ValueError, match=f"fill: value must be a byte, .*, not {value}"):
            filled.fill(value)

    @pytest.mark.parametrize("value", [1.0, b"x", None, True])
    def test_with_no_number_is_refused(self, filled, value):
        with pytest.raises(TypeError, match=r"Region\.fill: value must be an int"):
            filled.fill(value)

    @pytest.mark.parametrize(("offset", "nbytes"), [(-1, 1), (600_001, None), (599_999, 2)])
    def test_outside_the_region_is_refused(self, filled, offset, nbytes):
        with pytest.raises(ValueError, match=r"Region\.fill: offset .* outside"):
            filled.fill(0, offset, nbytes)

    @pytest.mark.parametrize("nbytes", [0, 1])
    @pytest.mark.parametrize("device", [0, "cpu"])
    def test_of_a_read_only_region_is_refused(self, contract, device, nbytes):
        with gdrpy.alloc(100, device) as region:
            fd = region.export()
        with (
            gdrpy.Region.from_fd(fd, readonly=True) as reader,
            pytest.raises(gdrpy.ReadOnly, match="Region.fill: the region is read-only; open it"),
        ):
            reader.fill(0, 0, nbytes)
        os.close(fd)

    def test_of_a_closed_region_is_refused(self, filled):
        filled.close()
        with pytest.raises(gdrpy.Closed, match=r"Region\.fill"):
            filled.fill(0)


OBJECTS = [np.array([None]), np.array([(1, "x")], [("Offset", "i4"), ("what", "O")])]


class TestArrayOfPythonObjects:
    @pytest.mark.parametrize("array", OBJECTS, ids=["plain", "structured"])
    @pytest.mark.parametrize(
        "call",
        [
            lambda one, array: one.write(array),
            lambda one, array: one.readinto(array),
            lambda one, array: one.write_strided(array, 64),
            lambda one, array: one.readinto_strided(array, 64),
            lambda one, array: one.cpu.write(array),
            lambda one, array: one.cpu.readinto(array),
            lambda one, array: one.cpu.write_many([(0, array)]),
            lambda one, array: one.cpu.scatter([0], array),
            lambda one, array: one.cpu.write_strided(array, 64),
        ],
    )
    def test_is_refused(self, large, array, call):
        with pytest.raises(TypeError, match=r"holds Python objects, not bytes: give it a dtype"):
            call(large, array)

    def test_is_told_from_one_whose_fields_are_named_so(self, large):
        array = np.array([(1, 2)], [("Offset", "i4"), ("O", "i4")])
        large.write(array)
        assert large.read(8) == array.tobytes()


class TestArrayWithoutBufferFormat:
    def test_is_copied_by_its_bytes(self, large):
        dates = np.array(["2020-01-01", "2021-06-01"], "M8[D]")
        large.write(dates)
        found = np.zeros(2, dates.dtype)
        large.readinto(found)
        assert found.tolist() == dates.tolist()

    def test_that_is_scattered_is_refused_in_the_calls_words(self, large):
        dates = np.zeros((2, 4), "M8[D]")[:, ::2]
        why = r"Region.write: data must be C-contiguous, as a copy by numpy.ascontiguousarray is \("
        with pytest.raises(ValueError, match=why):
            large.write(dates)
