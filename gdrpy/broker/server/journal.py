"""The broker's state as a log in a memfd, which outlives the broker in its store.

An entry is its length and CRC-32 (two little-endian 32-bit words) and its bytes. An entry that a
killed broker left half-written fails its checksum and ends the log. A header of 16 bytes precedes
the entries: magic, generation, and whether the beginning of the log is complete.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator

_MAGIC = 0x4A524447  # "GDRJ"
_HEADER = struct.Struct("<IIQ")
_ENTRY = struct.Struct("<II")
_HEAD = _ENTRY.size
_FIRST_SIZE = 1 << 20


class Journal:
    """An append-only log. ``fd`` is its memfd; each new journal has the next ``generation``."""

    def __init__(self, fd: int) -> None:
        """Take over a memfd that :meth:`begin` of a broker made. Raises ValueError."""
        self.fd = fd
        self._view = mmap.mmap(fd, 0)
        magic, self.generation, complete = _HEADER.unpack_from(self._view)
        if magic != _MAGIC or not complete:
            raise ValueError("the beginning of the journal is not complete")
        #: Bytes used, and those that an entry may end before, with room for a next length.
        self.size = _HEADER.size
        self._room = len(self._view) - _HEAD
        for entry in self.entries():
            self.size += _HEAD + len(entry)

    @classmethod
    def empty(cls, generation: int) -> Journal:
        """A new journal. No broker takes it over before :meth:`complete`."""
        fd = os.memfd_create("gdrpy-journal", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, _FIRST_SIZE)
            os.pwrite(fd, _HEADER.pack(_MAGIC, generation, 1), 0)
            journal = cls(fd)
        except BaseException:
            os.close(fd)
            raise
        _HEADER.pack_into(journal._view, 0, _MAGIC, generation, 0)
        return journal

    @classmethod
    def begin(cls, generation: int, entries: Iterable[bytes]) -> Journal:
        """A new journal that starts with these entries."""
        journal = cls.empty(generation)
        try:
            for entry in entries:
                journal.append(entry)
        except BaseException:
            journal.close()
            raise
        journal.complete()
        return journal

    def complete(self) -> None:
        """Mark the beginning as complete: the journal has all earlier state."""
        _HEADER.pack_into(self._view, 0, _MAGIC, self.generation, 1)

    def append(self, entry: bytes) -> None:
        """Add an entry; the next broker finds all of it or nothing."""
        size = len(entry)
        start = self.size
        end = start + _HEAD + size
        if end > self._room:
            self._view.resize(2 * max(len(self._view), end))
            self._room = len(self._view) - _HEAD
        self._view[start:end] = _ENTRY.pack(size, zlib.crc32(entry)) + entry
        self.size = end

    def entries(self) -> Iterator[bytes]:
        """All entries, in order, up to the first incomplete one."""
        position, view = _HEADER.size, self._view
        while position + _HEAD <= len(view):
            length, checksum = _ENTRY.unpack_from(view, position)
            data = position + _HEAD
            entry = view[data : data + length]
            if not length or len(entry) < length or zlib.crc32(entry) != checksum:
                return
            yield entry
            position = data + length

    def close(self) -> None:
        """Close the memfd; other holders of it keep the memory."""
        self._view.close()
        os.close(self.fd)
