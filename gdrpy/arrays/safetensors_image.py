"""The safetensors header: parsing and encoding.

An image is a 64-bit little-endian length, a JSON header of that many bytes, then the data, which
the tensors fill without gaps. Headers are untrusted: everything in them is checked.
"""

from __future__ import annotations

import hashlib
import math
import reprlib
from collections import abc
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from gdrpy.common.dtypes import DTYPES, DType

#: The bytes of the length in front of the header.
LENGTH_SIZE = 8
#: The longest header, in bytes.
HEADER_MAX = 100_000_000
#: The data of gdrpy's images begins at a multiple of this.
ALIGNMENT = 256
_METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}
_DIMENSIONS_MAX = 64


class Entry(msgspec.Struct, frozen=True):
    """A tensor of an image: ``start`` is its byte offset in the data, ``nbytes`` its size."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class Layout(msgspec.Struct, frozen=True):
    """A parsed header: tensors by name in the order of their data, and free text.

    The data begins at byte ``data_start`` of the image, which has ``nbytes`` bytes.
    """

    entries: dict[str, Entry]
    metadata: dict[str, str]
    data_start: int
    nbytes: int

    @property
    def aliases(self) -> dict[str, str]:
        """More names of tensors: metadata that gives the name of a tensor under a name that no
        tensor has, but for "format".
        """
        return {
            name: kept
            for name, kept in self.metadata.items()
            if name not in self.entries and kept in self.entries and name != "format"
        }

    @property
    def digest(self) -> str:
        """32 hexadecimal digits, the same where every tensor has the same names, type and place."""
        places = encode(replace(self, metadata=dict(sorted(self.aliases.items()))))
        return hashlib.sha256(b"%d %b" % (self.data_start, places)).hexdigest()[:32]


def read_header(size: int, read: Callable[[int, int], bytes]) -> bytes:
    """The header of an image in ``size`` bytes; ``read(nbytes, offset)`` returns some of them."""
    if size < LENGTH_SIZE:
        raise _error(f"{size} bytes hold no image" if size else "it is empty")
    length = int.from_bytes(read(LENGTH_SIZE, 0), "little")
    if length > HEADER_MAX:
        raise _error("not in this format: it does not begin with the length of a header")
    if length > size - LENGTH_SIZE:
        raise _error(
            f"not in this format: its header would have {length} bytes, more than the {size} there "
            f"are"
        )
    return read(length, LENGTH_SIZE)


def parse(header: bytes) -> Layout:
    """Parse a header.

    Raises ValueError, which names the tensor and the fault.
    """
    items = _parse_json(header)
    metadata = check_metadata(items.pop(_METADATA, {}))
    found = [(_checked_name(name), _entry(name, value)) for name, value in items.items()]
    entries = dict(sorted(found, key=lambda item: (item[1].start, item[1].nbytes)))
    end = 0
    for name, entry in entries.items():
        if entry.start != end:
            what = "overlaps the one before it" if entry.start < end else "leaves a hole before it"
            raise _error(f"begins at byte {entry.start} and {what}, which ends at {end}", name)
        end += entry.nbytes
    data_start = LENGTH_SIZE + len(header)
    return Layout(entries, metadata, data_start, data_start + end)


def lay_out(
    kinds: abc.Mapping[str, tuple[DType, tuple[int, ...]]], metadata: abc.Mapping[str, str]
) -> Layout:
    """Place tensors without holes: sizes with the largest power-of-two divisor first, then by name.

    Each tensor begins at a multiple of the largest power of two, up to 256, that divides its size.
    So all are aligned to their elements, and a model's matrices suit GPU code.

    Raises ValueError for names that the format refuses, and for too many of them.
    """
    sizes = {name: math.prod(shape) * kind.nbytes for name, (kind, shape) in kinds.items()}
    entries = {}
    end = 0
    alignments = {name: math.gcd(size, ALIGNMENT) for name, size in sizes.items()}
    for name in sorted(kinds, key=lambda name: (-alignments[name], _checked_name(name))):
        if name == _METADATA:
            raise _error("is the name of the metadata", name)
        kind, shape = kinds[name]
        entries[name] = Entry(kind.name, shape, end, sizes[name])
        end += sizes[name]
    layout = Layout(entries, check_metadata(metadata), 0, 0)
    data_start = len(pad(encode(layout)))
    return replace(layout, data_start=data_start, nbytes=data_start + end)


def encode(layout: Layout) -> bytes:
    """The header of a layout."""
    import json

    items: dict[str, Any] = {_METADATA: layout.metadata} if layout.metadata else {}
    for name, entry in layout.entries.items():
        items[name] = {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": (entry.start, entry.start + entry.nbytes),
        }
    return json.dumps(items, ensure_ascii=False, separators=(",", ":")).encode()


def pad(header: bytes) -> bytes:
    """Length and header, padded with spaces so that the data behind it is aligned."""
    header = header.rstrip(b" ")
    header += b" " * (-(LENGTH_SIZE + len(header)) % ALIGNMENT)
    if len(header) > HEADER_MAX:
        raise _error(f"a header of {len(header)} bytes is too long: {HEADER_MAX} is the limit")
    return len(header).to_bytes(LENGTH_SIZE, "little") + header


def check_metadata(value: Any) -> dict[str, str]:
    """Free text by name. Raises ValueError for anything else."""
    if not isinstance(value, abc.Mapping) or not all(
        _is_text(text) for item in value.items() for text in item
    ):
        raise _error(f"{_METADATA} must map names to text, not {reprlib.repr(value)}")
    return dict(value)


def _parse_json(header: bytes) -> dict[str, Any]:
    import json

    if not header.startswith(b"{"):
        raise _error(f"not in this format: a header begins with '{{', not with {header[:8]!r}")
    try:
        items: dict[str, Any] = json.loads(
            header.decode(), object_pairs_hook=_unique, parse_constant=_refuse
        )
    except (ValueError, RecursionError) as error:
        raise _error(f"the header is not valid JSON: {error}") from None
    return items


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items: dict[str, Any] = {}
    for name, value in pairs:
        if name in items:
            raise ValueError(f"{reprlib.repr(name)} is there twice")
        items[name] = value
    return items


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _entry(name: str, value: Any) -> Entry:
    if not isinstance(value, dict) or set(value) != _FIELDS:
        raise _error(f"must have only {', '.join(sorted(_FIELDS))}: {reprlib.repr(value)}", name)
    kind, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(kind, str) or kind not in DTYPES:
        raise _error(f"dtype {reprlib.repr(kind)} is not one of {', '.join(DTYPES)}", name)
    if not _are_lengths(shape) or len(shape) > _DIMENSIONS_MAX:
        raise _error(
            f"shape {reprlib.repr(shape)} is not a list of up to {_DIMENSIONS_MAX} lengths", name
        )
    if not _are_lengths(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _error(f"data_offsets {reprlib.repr(offsets)} are not begin and end", name)
    nbytes = math.prod(shape) * DTYPES[kind].nbytes
    if offsets[1] - offsets[0] != nbytes:
        raise _error(
            f"has {offsets[1] - offsets[0]} bytes of data, and {kind} of shape "
            f"{reprlib.repr(shape)} takes {nbytes}",
            name,
        )
    return Entry(kind, tuple(shape), offsets[0], nbytes)


def _are_lengths(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(number) is int and 0 <= number < 1 << 62 for number in value
    )


def _checked_name(name: Any) -> str:
    if not _is_text(name):
        raise _error("a name must be Unicode text", name)
    return str(name)


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True


def _error(what: str, name: Any = None) -> ValueError:
    where = "" if name is None else f"tensor {reprlib.repr(name)}: "
    return ValueError(f"safetensors: {where}{what}")
