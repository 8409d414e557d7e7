"""Many small copies in one call: Mapping.write_many and Mapping.scatter."""

from __future__ import annotations

import array
import os
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gdrpy
from gdrpy.common import arguments as _arguments
from gdrpy.common.arguments import as_offsets

ROOM = 4096
BACKGROUND = bytes(range(256)) * (ROOM // 256)

few = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def mapping(region: gdrpy.Region):
    """A small mapping in the middle of the region, with something in it."""
    with region.map(64, ROOM) as mapping:
        mapping.write(BACKGROUND)
        yield mapping


@pytest.fixture
def readonly(region: gdrpy.Region):
    with region.map(0, ROOM, readonly=True) as mapping:
        yield mapping


#: Gaps and contents of pieces, one behind the other.
spread = st.lists(st.tuples(st.integers(0, 70), st.binary(max_size=140)), max_size=40)


def placed(gaps_and_contents) -> list[tuple[int, bytes]]:
    pieces, at = [], 0
    for gap, content in gaps_and_contents:
        if at + gap + len(content) > ROOM:
            break
        pieces.append((at + gap, content))
        at += gap + len(content)
    return pieces


def with_pieces(pieces) -> bytes:
    expected = bytearray(BACKGROUND)
    for offset, content in pieces:
        expected[offset : offset + len(content)] = content
    return bytes(expected)


class Changing:
    """An offset that does something when it is asked for its value."""

    def __init__(self, act) -> None:
        self.act = act

    def __index__(self) -> int:
        self.act()
        return 0


@few
@given(spread, st.randoms(use_true_random=False))
def test_write_many_leaves_what_writes_one_by_one_would(region, gaps_and_contents, chance):
    pieces = placed(gaps_and_contents)
    chance.shuffle(pieces)
    region.cpu.write(BACKGROUND)
    region.cpu.write_many(pieces)
    assert region.cpu.read(ROOM) == with_pieces(pieces)


class TestWriteMany:
    def test_is_seen_by_the_gpu_when_it_returns(self, region, gpu_read):
        pieces = [(128 * i, i.to_bytes(64, "little")) for i in range(1, 2000)]
        region.cpu.write_many(pieces)
        seen = gpu_read(region.ptr, 128 * 2000)
        assert all(seen[at : at + 64] == content for at, content in pieces)

    @pytest.mark.parametrize("count", [0, 1, 32, 33, 100])
    @pytest.mark.parametrize("form", [list, tuple, iter])
    def test_takes_any_iterable(self, mapping, form, count):
        pieces = [(40 * i, bytes([i] * 3)) for i in range(count)]
        mapping.write_many(form(pieces))
        assert mapping.read() == with_pieces(pieces)

    def test_takes_any_pair_of_an_integer_and_a_buffer(self, mapping):
        numbers = np.arange(4, dtype=np.uint16)
        mapping.write_many(
            [
                [0, b"list"],
                (np.int64(8), bytearray(b"array")),
                (16, memoryview(b"view")),
                (24, numbers),
                (True, b"!"),
            ]
        )
        expected = [(0, b"list"), (8, b"array"), (16, b"view"), (24, numbers.tobytes()), (1, b"!")]
        assert mapping.read() == with_pieces(expected)
        mapping.write_many({40: b"items", 48: b""}.items())
        assert mapping.read(5, 40) == b"items"

    def test_lets_go_of_the_buffers(self, mapping):
        data = bytearray(b"mine")
        mapping.write_many([(0, data)])
        with pytest.raises(ValueError, match=r"pieces\[1\]"):
            mapping.write_many([(0, data), (-1, data)])
        data.append(0)  # which is refused while somebody has it

    @pytest.mark.parametrize(
        ("bad", "error", "message"),
        [
            ((ROOM - 1, b"xy"), ValueError, r"offset 4095 \+ 2 bytes lies outside the 4096-byte"),
            ((ROOM + 1, b""), ValueError, r"offset 4097 \+ 0 bytes lies outside the 4096-byte"),
            ((-1, b"x"), ValueError, "offset must be 0 or more, not -1"),
            ((1 << 63, b"x"), ValueError, "offset 9223372036854775808 does not fit 63 bits"),
            (("0", b"x"), TypeError, "offset must be an int, not '0'"),
            ((0.0, b"x"), TypeError, "offset must be an int, not 0.0"),
            ((0, "text"), TypeError, "data must be a bytes-like object or an array, not 'text'"),
            ((0, b"", 0), TypeError, r"must be a pair \(offset, data\), not \(0, b'', 0\)"),
            (7, TypeError, r"must be a pair \(offset, data\), not 7"),
        ],
    )
    @pytest.mark.parametrize("pair", [tuple, list])
    def test_refuses_a_bad_piece_before_it_stores_any(self, mapping, pair, bad, error, message):
        piece = bad if isinstance(bad, int) else pair(bad)
        message = message.replace(r"\(0, b'', 0\)", ".0, b'', 0.")
        with pytest.raises(error, match=rf"Mapping.write_many: pieces\[2\]:? {message}"):
            mapping.write_many([(0, b"first"), (8, bytearray(1)), piece])
        assert mapping.read() == BACKGROUND

    def test_refuses_scattered_arrays(self, mapping):
        with pytest.raises(ValueError, match="not C-contiguous"):
            mapping.write_many([(0, np.zeros((4, 4))[:, 1])])

    def test_refuses_what_cannot_be_iterated(self, mapping):
        with pytest.raises(TypeError, match="'int' object is not iterable"):
            mapping.write_many(7)

    def test_hands_on_what_an_iterator_raises(self, mapping):
        def pieces():
            yield 0, b"first"
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            mapping.write_many(pieces())
        assert mapping.read() == BACKGROUND

    def test_hands_on_what_an_offset_raises(self, mapping):
        def interrupt() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            mapping.write_many([(8, b"x"), (Changing(interrupt), b"x")])
        assert mapping.read() == BACKGROUND

    def test_notices_that_a_piece_closed_the_mapping(self, region):
        mapping = region.map(0, ROOM)
        with pytest.raises(gdrpy.Closed, match=r"Mapping\.write_many"):
            mapping.write_many([(8, b"x"), (Changing(mapping.close), b"x")])


@few
@given(
    st.sets(st.integers(0, 63), max_size=64),
    st.integers(0, 64),
    st.integers(0, 63),
    st.randoms(use_true_random=False),
)
def test_scatter_puts_every_record_at_its_offset(region, slots, nbytes, shift, chance):
    offsets = [64 * slot + min(shift, 64 - nbytes) for slot in slots]
    chance.shuffle(offsets)
    records = np.frombuffer(chance.randbytes(len(offsets) * nbytes), np.uint8)
    records = records.reshape(len(offsets), nbytes)
    region.cpu.write(BACKGROUND)
    region.cpu.scatter(np.array(offsets, np.int64), records)
    expected = with_pieces(
        (at, record.tobytes()) for at, record in zip(offsets, records, strict=True)
    )
    assert region.cpu.read(ROOM) == expected


#: Offsets 8, 24 and 16 that do not lie on a word's boundary, as in a packet.
ODD = memoryview(b"-" + np.array([8, 24, 16]).tobytes())


class TestScatter:
    def test_reads_no_offset_across_a_boundary(self, mapping, monkeypatch):
        read = []

        def seen(call, offsets):
            read.append(as_offsets(call, offsets))
            return read[0]

        monkeypatch.setattr(_arguments, "as_offsets", seen)
        mapping.scatter(ODD[1:].cast("q"), b"abc")
        assert read[0].flags.aligned
        assert mapping.read(17, 8)[::8] == b"acb"

    def test_is_seen_by_the_gpu_when_it_returns(self, region, gpu_read):
        offsets = np.arange(1, 5000) * 128
        records = np.arange(4999 * 16, dtype=np.uint32).reshape(-1, 16)
        region.cpu.scatter(offsets, records)
        seen = np.frombuffer(gpu_read(region.ptr, 128 * 5000), np.uint32).reshape(-1, 32)
        assert np.array_equal(seen[1:, :16], records)

    @pytest.mark.parametrize(
        "offsets",
        [
            [8, 24, 16],
            (8, 24, 16),
            range(8, 32, 8),
            array.array("q", [8, 24, 16]),
            np.array([8, 24, 16], np.uint8),
            np.array([8, 24, 16], np.uint64),
            np.array([8, 24, 16], ">i8"),
            np.array([[8, 0], [24, 0], [16, 0]])[:, 0],
            memoryview(np.array([8, 24, 16])),
            ODD[1:].cast("q"),
        ],
        ids=lambda one: type(one).__name__ + getattr(getattr(one, "dtype", None), "str", ""),
    )
    def test_takes_any_integers_as_offsets(self, mapping, offsets):
        mapping.scatter(offsets, np.array([1, 2, 3], np.uint64))
        expected = zip(offsets, (n.to_bytes(8, "little") for n in (1, 2, 3)), strict=True)
        assert mapping.read() == with_pieces((int(at), content) for at, content in expected)

    def test_takes_records_of_any_dtype_and_shape(self, mapping):
        kind = np.dtype([("number", "u4"), ("when", "M8[s]"), ("point", "f4", 3)])
        records = np.zeros(2, kind)
        records["number"] = 7, 8
        mapping.scatter(offsets=[0, 100], records=records)
        expected = [(100 * i, records[i].tobytes()) for i in range(2)]
        assert mapping.read() == with_pieces(expected)
        mapping.scatter([2, 5], b"ab")
        assert mapping.read(4, 2)[::3] == b"ab"

    @pytest.mark.parametrize("offsets", [[], np.empty(0, np.int64)])
    def test_of_nothing_does_nothing(self, mapping, offsets):
        mapping.scatter(offsets, np.empty((0, 64), np.uint8))
        mapping.scatter([ROOM], np.empty((1, 0), np.uint8))
        assert mapping.read() == BACKGROUND

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (-1, "must be 0 or more, not -1"),
            (-(1 << 63), "must be 0 or more, not -9223372036854775808"),
            (ROOM - 7, r": offset 4089 \+ 8 bytes lies outside the 4096-byte mapping"),
            ((1 << 63) - 1, r": offset 9223372036854775807 \+ 8 bytes lies outside"),
        ],
    )
    def test_refuses_a_bad_offset_before_it_stores_any(self, mapping, bad, message):
        offsets = np.array([0, 8, bad, 16])
        with pytest.raises(ValueError, match=rf"Mapping\.scatter: offsets\[2\] ?{message}"):
            mapping.scatter(offsets, np.zeros(4))
        assert mapping.read() == BACKGROUND

    @pytest.mark.parametrize(
        ("offsets", "error", "message"),
        [
            ([1.0], TypeError, "offsets must be integers, not float64"),
            ([True], TypeError, "offsets must be integers, not bool"),
            (["8"], TypeError, "offsets must be integers, not <U1"),
            ([1 << 70], TypeError, "offsets must be integers, not object"),
            (8, ValueError, "offsets must have one dimension, and have 0"),
            ([[8]], ValueError, "offsets must have one dimension, and have 2"),
            (np.zeros((1, 1), np.int64), ValueError, "one dimension, and have 2"),
            (np.array([1 << 63], np.uint64), ValueError, r"offsets\[0\] \d+ does not fit 63 bits"),
        ],
    )
    def test_refuses_other_offsets(self, mapping, offsets, error, message):
        with pytest.raises(error, match=message):
            mapping.scatter(offsets, np.zeros(1))
        assert mapping.read() == BACKGROUND

    @pytest.mark.parametrize(
        ("records", "rows"), [(np.zeros(2), 2), (np.zeros((2, 3)), 2), (np.zeros(()), 0), (b"", 0)]
    )
    def test_refuses_another_number_of_records(self, mapping, records, rows):
        with pytest.raises(ValueError, match=rf"there are 3 offsets: .*, which has {rows}$"):
            mapping.scatter([0, 8, 16], records)

    def test_refuses_records_that_are_scattered_or_no_buffer(self, mapping):
        with pytest.raises(ValueError, match="not C-contiguous"):
            mapping.scatter([0, 8], np.zeros((2, 4))[:, ::2])
        with pytest.raises(TypeError, match="records must be a bytes-like object or an array"):
            mapping.scatter([0], ["text"])

    def test_refuses_records_larger_than_the_mapping(self, mapping):
        with pytest.raises(ValueError, match=r"offsets\[0\]: offset 0 \+ 4097 bytes"):
            mapping.scatter([0], np.zeros((1, ROOM + 1), np.uint8))


CALLS = [
    lambda one: one.write_many([(0, b"x")]),
    lambda one: one.scatter([0], b"x"),
    lambda one: one.write_many([]),
    lambda one: one.scatter([], b""),
]


@pytest.mark.parametrize("call", CALLS)
class TestBoth:
    def test_refuse_a_read_only_mapping(self, readonly, call):
        with pytest.raises(gdrpy.ReadOnly, match=r"Mapping\.(write_many|scatter)"):
            call(readonly)

    def test_refuse_a_closed_mapping(self, region, call):
        mapping = region.map(0, ROOM)
        mapping.close()
        with pytest.raises(gdrpy.Closed, match=r"Mapping\.(write_many|scatter)"):
            call(mapping)

    def test_refuse_a_revoked_mapping(self, region, call):
        with region.map(0, ROOM) as mapping:
            mapping._revoke()
            with pytest.raises(gdrpy.Revoked, match=r"Mapping\.(write_many|scatter)"):
                call(mapping)

    def test_refuse_the_mapping_of_a_parent_process(self, mapping, call):
        child = os.fork()
        if not child:
            try:
                call(mapping)
            except gdrpy.Forked:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.write_many([(at, bytes(4096)) for at in range(0, 1 << 20, 4096)]),
        lambda one: one.scatter(range(0, 1 << 20, 4096), np.zeros((256, 4096), np.uint8)),
    ],
)
def test_large_calls_let_other_threads_run_and_hold_the_mapping(region, call):
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            call(region.cpu)

    thread = threading.Thread(target=work)
    thread.start()
    while not region.cpu._users:  # a call that has the GIL is never seen as a user
        pass
    ended.set()
    thread.join()
    assert region.cpu._users == 0


def test_a_batch_leaves_the_fence_to_its_end(region, gpu_read):
    with region.cpu.batch():
        region.cpu.write_many([(0, b"many")])
        region.cpu.scatter([4], np.frombuffer(b"scat", np.uint32))
    assert gpu_read(region.ptr, 8) == b"manyscat"
