"""Parts of arrays, by an index."""

from __future__ import annotations

import numpy as np
import pytest

import gdrpy

SHAPE = (3, 4, 5)


@pytest.fixture
def array(region):
    array = region.array(SHAPE, "I32", 4096)
    array.write(np.arange(60, dtype="i4").reshape(SHAPE))
    return array


def expected(index: object) -> np.ndarray:
    return np.arange(60, dtype="i4").reshape(SHAPE)[index]


class TestPart:
    @pytest.mark.parametrize(
        "index",
        [
            *(1, -1, np.int64(2), ..., (...,), (), (2, ...), (..., slice(None))),
            *(slice(1, 3), slice(None), slice(-2, None), slice(0, 9), slice(1, 3, 1)),
            *((1, slice(1, 3)), (2, 3), (2, 3, 4), (-1, -1, -1), (0, 1, slice(2, 4))),
            *((slice(1, 2), slice(2, 4)), (slice(0, 1), 2, slice(1, 3)), slice(2, 3, 7)),
            *(slice(2, 1), (slice(5, 9), 1), (..., slice(0, 0)), slice(0, None, -1)),
        ],
        ids=repr,
    )
    def test_shows_the_same_elements(self, array, index):
        part = array[index]
        assert part.shape == expected(index).shape
        assert np.array_equal(part.read(), expected(index))
        assert np.array_equal(part.numpy(), expected(index))
        assert part.nbytes == expected(index).nbytes
        if part.nbytes:
            found = part.numpy().ctypes.data - array.numpy().ctypes.data
            assert part.ptr - array.ptr == part.offset - array.offset == found

    @pytest.mark.parametrize(
        ("index", "error", "match"),
        [
            (3, IndexError, "index 3 lies outside a dimension of length 3"),
            ((0, -5), IndexError, "index -5 lies outside a dimension of length 4"),
            ((0, 0, 0, 0), IndexError, "has 4 indices .* takes up to 3 indices"),
            ((..., ...), IndexError, "has 0 indices and 2 '...'"),
            ((slice(None), 1), ValueError, r"part of shape \(3, 5\) .* is not contiguous"),
            (slice(None, None, 2), ValueError, "is not contiguous"),
            (slice(None, None, -1), ValueError, "is not contiguous"),
            (None, TypeError, "an index must be an int, not None: it may also be a slice"),
            (True, TypeError, "an index must be an int, not True"),
            ([0, 1], TypeError, r"not \[0, 1\]: .* for others index array\.numpy\(\)"),
            ("a", TypeError, "not 'a'"),
            (1.0, TypeError, "not 1.0"),
        ],
        ids=repr,
    )
    def test_that_cannot_be_is_refused(self, array, index, error, match):
        with pytest.raises(error, match=rf"^Array\[\.\.\.\]: .*{match}"):
            array[index]

    def test_is_one_row_after_the_other_in_a_loop(self, array):
        assert [part.offset for part in array] == [4096, 4176, 4256]

    def test_of_a_closed_array_is_refused(self, array):
        part = array[1]
        array.close()
        with pytest.raises(gdrpy.Closed, match=r"Array\[\.\.\.\]: the Array is closed"):
            array[0]
        assert part.read().shape == (4, 5)

    def test_of_a_read_only_array_is_read_only(self, readonly_region):
        part = readonly_region.array(SHAPE, "I32")[1]
        assert part.readonly
        with pytest.raises(gdrpy.ReadOnly):
            part[0] = 1


class TestAssignment:
    def test_writes_to_the_part_alone(self, array):
        copy = array.read()
        array[1] = np.full((4, 5), 7, "i4")
        array[2, 1:3] = np.arange(10, dtype="i4").reshape(2, 5)
        array[0, 0, 0] = -3
        array[0, 1] = 9
        copy[1], copy[2, 1:3], copy[0, 0, 0], copy[0, 1] = 7, np.arange(10).reshape(2, 5), -3, 9
        assert np.array_equal(array.read(), copy)

    def test_takes_what_write_takes(self, array):
        with pytest.raises(TypeError, match=r"dtype is F64, and this Array's I32"):
            array[0] = np.zeros((4, 5))
        with pytest.raises(ValueError, match=r"shape is \(5,\), and this Array's \(4, 5\)"):
            array[0] = np.zeros(5, "i4")
        with pytest.raises(ValueError, match="I32 does not hold 1099511627776"):
            array[0] = 1 << 40
        assert np.array_equal(array.read(), expected(...))
