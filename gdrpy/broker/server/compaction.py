"""Copying the state into a new journal, in slices, while it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from gdrpy.broker.server import records
from gdrpy.broker.server.table import RegionEntry, Table


class Compaction:
    """Gives ``append`` the records that make a table, some at a time.

    Changes of copied sessions and regions are appended too. Sessions and regions that are not
    copied yet are copied later, in their state at that time.
    """

    def __init__(self, table: Table, append: Callable[[records.Record], object]) -> None:
        self._table = table
        self._append = append
        #: Not copied yet. A session is copied before the regions that it holds.
        self._sessions = table.sessions.copy()
        self._regions = table.regions.copy()
        append(table.beginning())

    def go_on(self, count: int) -> bool:
        """Copy for about ``count`` records; returns whether everything is copied.

        A region is copied whole, with a record for each of its leases.
        """
        while count > 0 and self._sessions:
            number = next(reversed(self._sessions))
            count -= 1 + len(self._sessions[number].asleep)
            self._copy_session(number)
        while count > 0 and self._regions:
            _, region = self._regions.popitem()
            count -= self._copy(region)
        return not (self._sessions or self._regions)

    def follow(self, record: records.Record) -> None:
        """Append a change that the table is about to make, if its subject was copied."""
        match record:
            case records.Ended(session):
                if self._sessions.pop(session, None) is not None:
                    return
            case records.Published():
                # Copied now, or the copy would miss that another region loses the name.
                self._copy_now([*(number for number, _ in record.regions), *record.unlinked])
            case records.Unlinked():
                self._copy_now(record.regions)
            case records.Granted(session, region=number):
                if number in self._regions:
                    return
                self._copy_session(session)
            case records.Slept(session) | records.Woke(session) | records.Left(session):
                if session in self._sessions:
                    return
            case records.Made() | records.Began():
                pass
            case _:
                if record.region in self._regions:  # type: ignore[attr-defined]
                    return
        self._append(record)

    def _copy_now(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            region = self._regions.pop(number, None)
            if region is not None:
                self._copy(region)

    def _copy_session(self, number: int) -> None:
        session = self._sessions.pop(number, None)
        if session is not None:
            self._append(session.began())
            for slept in session.asleep.values():
                self._append(slept)
            if session.left:
                self._append(records.Left(number))

    def _copy(self, region: RegionEntry) -> int:
        """Copy a region, unless it is gone; returns the number of records."""
        if region.number not in self._table.regions:
            return 1
        for number in region.leases:
            self._copy_session(number)
        count = 0
        for record in _records_of(self._table, region):
            self._append(record)
            count += 1
        return count


def _records_of(table: Table, region: RegionEntry) -> Iterator[records.Record]:
    number = region.number
    yield msgspec.convert(region, records.Made, from_attributes=True)
    if region.linked:
        yield records.Published(number, region.version)
    if region.sealed:
        yield records.SealedNow(number, region.copy_of, region.mark)
    if (version := table.keeps(region)) is not None:
        yield records.Kept(number, version)
    if region.digest is not None:
        yield records.Digested(number, region.digest)
    for session, lease in region.leases.items():
        yield records.Granted(session, number, lease.writable, lease.gpu)
    if region.exporter:
        yield records.Bound(number, region.exporter)
