"""The journal: what a killed broker wrote of it is found whole, or as if it had not been begun."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gdrpy.broker.server.journal import Journal
from support import open_descriptors

ENTRIES = [b"first", b"\0", b"", b"x" * 300, b"\xff" * 7, b"zeros at its end\0\0\0"]
WHOLE = [entry for entry in ENTRIES if entry]
HEADER = 16


@pytest.fixture
def journal() -> Iterator[Journal]:
    made = Journal.begin(3, WHOLE)
    yield made
    made.close()


def copy_of(journal: Journal, nbytes: int) -> int:
    """A memfd of the same size, with the first bytes of a journal and zeros behind them."""
    fd = os.memfd_create("copy")
    os.ftruncate(fd, os.fstat(journal.fd).st_size)
    os.pwrite(fd, os.pread(journal.fd, nbytes, 0), 0)
    return fd


def taken_over(fd: int) -> list[bytes]:
    journal = Journal(fd)
    try:
        return list(journal.entries())
    finally:
        journal.close()


class TestJournal:
    def test_is_found_as_it_was_written(self, journal: Journal) -> None:
        found = Journal(os.dup(journal.fd))
        assert list(found.entries()) == WHOLE
        assert (found.generation, found.size) == (3, journal.size)
        found.close()

    def test_cut_at_any_byte_has_the_entries_before_and_nothing_else(
        self, journal: Journal
    ) -> None:
        ends = [HEADER]
        for entry in WHOLE:
            ends.append(ends[-1] + 8 + len(entry))
        for cut in range(HEADER, journal.size + 1):
            whole = sum(end <= cut for end in ends[1:])
            found = taken_over(copy_of(journal, cut))
            # Zeros that were not written yet cannot be told from those that were.
            assert found[:whole] == WHOLE[:whole]
            assert len(found) - whole <= 1
            assert found == WHOLE[: len(found)]

    def test_goes_on_behind_the_last_whole_entry(self, journal: Journal) -> None:
        copy = Journal(copy_of(journal, journal.size - 5))
        copy.append(b"again")
        assert list(copy.entries()) == [*WHOLE[:-1], b"again"]
        copy.close()

    def test_entry_with_a_changed_byte_ends_it(self, journal: Journal) -> None:
        for position in range(HEADER, HEADER + 8 + len(WHOLE[0])):
            fd = copy_of(journal, journal.size)
            (byte,) = os.pread(fd, 1, position)
            os.pwrite(fd, bytes([byte ^ 1]), position)
            assert taken_over(fd) == []

    def test_grows_beyond_its_first_size(self) -> None:
        journal = Journal.begin(0, [])
        entries = [bytes([number % 255 + 1]) * 60_000 for number in range(40)]
        for entry in entries:
            journal.append(entry)
        assert taken_over(os.dup(journal.fd)) == entries
        journal.close()

    def test_that_was_never_begun_completely_is_refused(self, journal: Journal) -> None:
        for header in (b"", b"\0" * HEADER, os.pread(journal.fd, 8, 0), b"\xff" * HEADER):
            fd = os.memfd_create("half")
            os.ftruncate(fd, 4096)
            os.pwrite(fd, header, 0)
            with pytest.raises(ValueError, match="beginning of the journal is not complete"):
                Journal(fd)
            os.close(fd)

    def test_of_no_bytes_is_refused(self) -> None:
        fd = os.memfd_create("empty")
        with pytest.raises(ValueError, match="empty file"):
            Journal(fd)
        os.close(fd)

    def test_whose_entries_fail_leaves_no_descriptor(self) -> None:
        def entries() -> Iterator[bytes]:
            yield b"first"
            raise MemoryError

        before = open_descriptors()
        with pytest.raises(MemoryError):
            Journal.begin(1, entries())
        assert open_descriptors() == before
