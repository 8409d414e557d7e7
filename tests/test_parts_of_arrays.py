"""Which parts of an array are contiguous, as numpy sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdrpy.arrays.array import part_of


@st.composite
def indexed(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """A shape, and an index of it with or without a ``...``."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))

    def key(length: int) -> Any:
        whole = st.slices(length)
        return draw(st.integers(-length, length - 1) | whole if length else whole)

    first = draw(st.integers(0, len(shape)))
    last = draw(st.integers(first, len(shape)))
    keys = [key(length) for length in shape[:first]]
    if draw(st.booleans()):
        keys += [..., *(key(length) for length in shape[last:])]
    return shape, tuple(keys)


class TestPart:
    @given(indexed())
    def test_is_there_just_where_numpys_is_contiguous(self, shape_and_index):
        shape, index = shape_and_index
        whole = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        expected = whole[index]
        if not expected.flags.c_contiguous:
            with pytest.raises(ValueError, match=r"is not contiguous: index array\.numpy\(\)"):
                part_of("call", shape, index)
            return
        found, first = part_of("call", shape, index)
        assert found == expected.shape
        if expected.size:
            assert first == expected.flat[0]
