"""Headers of every kind: understood as the safetensors package does, or a ValueError."""

from __future__ import annotations

import json

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from gdrpy.arrays import safetensors_image as image
from gdrpy.common.dtypes import DTYPES

lengths = st.integers(-1, 4) | st.sampled_from([1 << 40, 1 << 62, 1 << 64])
scalars = st.none() | st.booleans() | lengths | st.floats() | st.text(max_size=3)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner)
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPES, "F128"]) | json_values,
        "shape": st.lists(lengths, max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(0, 64), min_size=2, max_size=2) | json_values,
    }
)
headers = st.dictionaries(
    st.text(max_size=2) | st.just("__metadata__"), entries | json_values, max_size=3
)


@st.composite
def nearly_valid(draw: st.DrawFn) -> bytes:
    """A valid header in which a few bytes were changed, or none."""
    kinds = st.sampled_from(list(DTYPES.values()))
    shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
    tensors = draw(st.dictionaries(st.text(max_size=3), st.tuples(kinds, shapes), max_size=4))
    header = bytearray(image.pad(image.encode(image.lay_out(tensors, {})))[image.LENGTH_SIZE :])
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(header.rstrip()) - 1))
        header[place] = draw(st.sampled_from(b'0123456789{}[]",: -\xff'))
    return bytes(header)


def check(header: bytes) -> None:
    """Parse; what is taken the safetensors package takes too, with the same tensors."""
    found = None
    refusal = "safetensors: "
    try:
        found = image.parse(header)
    except ValueError as error:
        refusal = str(error)
    assert refusal.startswith("safetensors: ")
    if found is None or found.nbytes > 1 << 20:
        return
    data = bytes(found.nbytes - found.data_start)
    theirs = dict(safetensors.deserialize(len(header).to_bytes(8, "little") + header + data))
    assert theirs.keys() == found.entries.keys()
    for name, entry in found.entries.items():
        assert (theirs[name]["dtype"], tuple(theirs[name]["shape"])) == (entry.dtype, entry.shape)
        assert len(theirs[name]["data"]) == entry.nbytes


class TestHeader:
    @settings(max_examples=300, deadline=None)
    @given(st.binary(max_size=200))
    def test_of_any_bytes(self, header):
        check(b"{" + header)

    @settings(max_examples=100, deadline=None)
    @given(headers)
    def test_of_any_json(self, header):
        check(json.dumps(header).encode())

    @settings(max_examples=300, deadline=None)
    @given(nearly_valid())
    def test_that_is_nearly_valid(self, header):
        check(header)

    @settings(max_examples=100, deadline=None)
    @given(st.integers(0, 40) | st.integers(0, (1 << 64) - 1), st.binary(max_size=40))
    def test_lies_inside_the_image_whatever_its_length_says(self, length, content):
        whole = length.to_bytes(8, "little") + content

        def read(nbytes: int, offset: int) -> bytes:
            return whole[offset : offset + nbytes]

        if length <= len(content):
            assert image.read_header(len(whole), read) == content[:length]
        else:
            why = f"would have {length} bytes|not begin with the length of a header"
            with pytest.raises(ValueError, match=why):
                image.read_header(len(whole), read)
