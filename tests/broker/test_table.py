"""The table: what the next broker reads is what this one had, whatever was done to it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgpack import packb

from gdrpy.broker import requests
from gdrpy.broker.copies import MARK, Mark
from gdrpy.broker.server import records
from gdrpy.broker.server.compaction import Compaction
from gdrpy.broker.server.journal import Journal
from gdrpy.broker.server.quotas import Quotas
from gdrpy.broker.server.rights import Identity
from gdrpy.broker.server.service import Service
from gdrpy.broker.server.table import RegionEntry, Session, Table
from sleeping import GPU


def described(table: Table) -> dict[str, Any]:
    """All that a table says, to be compared."""
    return {
        "life": table.life,
        "regions": {
            region.number: (
                *(region.name, region.nbytes, region.size, region.device, region.uid, region.gid),
                *(region.mode, region.metadata, region.version, region.linked, region.sealed),
                region.digest,
                {number: (lease.writable, lease.gpu) for number, lease in region.leases.items()},
                region.copy_of,
                region.uuid,
                (region.grace, region.exporter),
            )
            for region in table.regions.values()
        },
        "nameless": set(table.nameless),
        "names": {name: region.number for name, region in table.names.items()},
        "sorted": table.sorted_names,
        "copies": {
            name: {uid: copy.number for uid, copy in copies.items()}
            for name, copies in table.copies.items()
        },
        "kept": table.kept,
        "sessions": {
            session.number: (session.identity, set(session.regions), session.asleep, session.left)
            for session in table.sessions.values()
        },
        "used": {device: used for device, used in table.used.items() if used},
        "used_by": dict(table.used_by),
        "counted": {uid: count for uid, count in table.counted.items() if count},
        "slept": table.slept,
        "sleepers": table._sleepers,
    }


def replayed(entries: list[bytes]) -> Table:
    table = Table(lambda record: None, lambda region: None)
    for entry in entries:
        table.apply(records.decode(entry))
    return table


def copying(table: Table, entries: list[bytes]) -> Compaction:
    """What copies a table to a list."""
    return Compaction(table, lambda record: entries.append(records.encode(record)))


NAMES = st.sampled_from(["a", "b", "weights/0", "weights/1", "\u00e4\U0001f600"])
DEVICES = st.sampled_from([-1, 0, 1])


class TableMachine(RuleBasedStateMachine):
    """What a broker may do to its table, in any order, beside a model of it."""

    def __init__(self) -> None:
        super().__init__()
        self.copied: list[bytes] = []
        self.compaction: Compaction | None = None

    @initialize()
    def begin(self) -> None:
        self.journal = Journal.begin(0, [])
        self.freed: list[int] = []
        self.table = Table(
            self.remember,
            lambda region: self.freed.append(region.number),
        )
        self.table.commit(records.Life("00ff" * 8, 1))
        self.made: set[int] = set()

    def remember(self, record: records.Record) -> None:
        self.journal.append(records.encode(record))
        if self.compaction is not None:
            self.compaction.follow(record)

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()

    def any_session(self, data: Any) -> int:
        return int(data.draw(st.sampled_from(sorted(self.table.sessions))))

    def any_region(self, data: Any) -> RegionEntry:
        return self.table.regions[data.draw(st.sampled_from(sorted(self.table.regions)))]

    @rule(uid=st.integers(0, 2), groups=st.sets(st.integers(0, 3)))
    def session_begins(self, uid: int, groups: set[int]) -> None:
        number = self.table.number()
        self.table.commit(records.Began(number, 100 + uid, 7, uid, uid, sorted(groups)))

    @precondition(lambda self: self.table.sessions)
    @rule(
        data=st.data(),
        name=st.none() | NAMES,
        nbytes=st.integers(1, 10_000),
        device=DEVICES,
        draft=st.booleans(),
        grace=st.none() | st.just(0.5),
    )
    def region_is_made_and_held(
        self,
        data: Any,
        name: str | None,
        nbytes: int,
        device: int,
        draft: bool,
        grace: float | None,
    ) -> None:
        session = self.table.sessions[self.any_session(data)]
        number = self.table.number()
        assert number not in self.made, "a number of this life again"
        self.made.add(number)
        size = -(-nbytes // 4096) * 4096
        who = session.identity
        self.table.commit(
            records.Made(
                *(number, name, nbytes, size, device, who.uid, who.gid, 0o640),
                b"m" * (nbytes % 9),
                uuid="" if device < 0 else f"GPU-{device}",
                grace=grace,
            )
        )
        if name is not None and not draft and name not in self.table.names:
            self.table.commit(records.Published(number, 1))
        if grace is not None:
            self.table.commit(records.Bound(number, session.number))
        self.table.grant(session, self.table.regions[number], True, device >= 0)

    @precondition(lambda self: any(region.draft for region in self.table.regions.values()))
    @rule(data=st.data())
    def drafts_are_published(self, data: Any) -> None:
        drafts = [number for number, region in self.table.regions.items() if region.draft]
        numbers = data.draw(
            st.lists(st.sampled_from(sorted(drafts)), min_size=1, unique_by=self.name_of)
        )
        made = []
        for number in numbers:
            old = self.table.names.get(self.name_of(number))
            made.append((number, 1 if old is None else old.version + 1))
        self.table.commit(records.Published(*made[0], made[1:]))

    def name_of(self, number: int) -> str:
        return str(self.table.regions[number].name)

    @precondition(lambda self: self.table.names)
    @rule(data=st.data())
    def name_is_deleted(self, data: Any) -> None:
        region = self.table.names[data.draw(st.sampled_from(sorted(self.table.names)))]
        self.table.commit(records.Unlinked(region.number))

    @precondition(lambda self: self.table.sessions and self.table.regions)
    @rule(data=st.data(), writable=st.booleans(), gpu=st.booleans(), count=st.integers(1, 3))
    def region_is_granted(self, data: Any, writable: bool, gpu: bool, count: int) -> None:
        region = self.any_region(data)
        session = self.table.sessions[self.any_session(data)]
        for _ in range(count):
            self.table.grant(session, region, writable, gpu)

    @precondition(lambda self: any(region.leases for region in self.table.regions.values()))
    @rule(data=st.data())
    def lease_is_released(self, data: Any) -> None:
        held = [number for number, region in self.table.regions.items() if region.leases]
        region = self.table.regions[data.draw(st.sampled_from(sorted(held)))]
        session = data.draw(st.sampled_from(sorted(region.leases)))
        self.table.release(self.table.sessions[session], region)

    @precondition(lambda self: any(one.exporter for one in self.table.regions.values()))
    @rule(data=st.data())
    def exporter_resumes(self, data: Any) -> None:
        bound = [number for number, one in self.table.regions.items() if one.exporter]
        region = self.table.regions[data.draw(st.sampled_from(sorted(bound)))]
        session = data.draw(st.sampled_from(sorted(region.leases)))
        self.table.commit(records.Bound(region.number, session))

    @precondition(lambda self: self.table.sessions and self.table.regions)
    @rule(data=st.data())
    def region_falls_asleep(self, data: Any) -> None:
        fall_asleep(self.table, self.any_session(data), self.any_region(data))

    @precondition(lambda self: any(one.asleep for one in self.table.sessions.values()))
    @rule(data=st.data())
    def region_wakes(self, data: Any) -> None:
        slept = [(one.number, n) for one in self.table.sessions.values() for n in one.asleep]
        self.table.commit(records.Woke(*data.draw(st.sampled_from(slept))))

    @precondition(lambda self: self.table.sessions)
    @rule(data=st.data())
    def session_ends(self, data: Any) -> None:
        self.table.commit(records.Ended(self.any_session(data)))

    @precondition(lambda self: self.table.regions)
    @rule(data=st.data(), mode=st.integers(0, 0o666), metadata=st.binary(max_size=20))
    def region_changes(self, data: Any, mode: int, metadata: bytes) -> None:
        self.table.commit(records.Changed(self.any_region(data).number, mode, metadata))

    @precondition(lambda self: self.table.regions)
    @rule(data=st.data(), digest=st.booleans(), copy_of=st.sampled_from([None, ("ab" * 16, 7)]))
    def region_is_sealed(self, data: Any, digest: bool, copy_of: tuple[str, int] | None) -> None:
        region = self.any_region(data)
        self.table.commit(records.SealedNow(region.number, copy_of))
        if digest:
            self.table.commit(records.Digested(region.number, "ab" * 32))

    @precondition(lambda self: self.compaction is None)
    @rule()
    def compaction_begins(self) -> None:
        self.copied = []
        self.compaction = copying(self.table, self.copied)

    @precondition(lambda self: self.compaction is not None)
    @rule(count=st.integers(1, 4))
    def compaction_goes_on(self, count: int) -> None:
        assert self.compaction is not None
        if self.compaction.go_on(count):
            self.compaction = None
            old = self.journal
            self.journal = Journal.begin(old.generation + 1, self.copied)
            old.close()

    @invariant()
    def next_broker_finds_the_same(self) -> None:
        if not hasattr(self, "table"):
            return
        found = replayed(list(self.journal.entries()))
        assert described(found) == described(self.table)
        assert found.number() >= max([0, *self.made & set(found.regions), *self.table.sessions]), (
            "a number would be given again"
        )

    @invariant()
    def snapshot_says_the_same(self) -> None:
        if not hasattr(self, "table"):
            return
        entries: list[bytes] = []
        assert copying(self.table, entries).go_on(1 << 30)
        again = replayed(entries)
        assert described(again) == described(self.table)
        assert again.number() == self.table._next

    @invariant()
    def accounts_agree_with_the_regions(self) -> None:
        if not hasattr(self, "table"):
            return
        table, regions = self.table, self.table.regions.values()
        used: Counter[int] = Counter()
        used_by: Counter[tuple[int, int]] = Counter()
        for region in regions:
            used[region.device] += region.size
            used_by[region.device, region.uid] += region.size
            assert region.linked or region.leases, "nobody keeps it"
            assert not (region.linked and region.ended)
            assert region.exporter in {0, *region.leases}
            assert region.number not in self.freed
            for number, lease in region.leases.items():
                assert lease.count > 0
                assert table.sessions[number].regions[region.number] is region
        assert {device: n for device, n in table.used.items() if n} == dict(used)
        assert dict(table.used_by) == dict(used_by)
        assert {uid: n for uid, n in table.counted.items() if n} == dict(
            Counter(region.uid for region in regions)
        )
        assert {region.name for region in regions if region.linked} == set(table.names)
        assert self.made == set(table.regions) | set(self.freed)
        assert len(self.freed) == len(set(self.freed)), "freed twice"
        for session in table.sessions.values():
            for number in session.regions:
                assert session.number in table.regions[number].leases
        sleepers = {
            (slept.name, slept.uid, session.number, number): slept.version
            for session in table.sessions.values()
            for number, slept in session.asleep.items()
        }
        assert sleepers == {
            (*name, *one): version
            for name, found in table._sleepers.items()
            for one, version in found.items()
        }
        assert all(table._sleepers.values())
        assert sum(table.slept.values()) == len(sleepers)


TestTable = TableMachine.TestCase
TestTable.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def change(table: Table, chance: random.Random) -> None:
    """Something that a broker may do to its table, often to the same few names."""
    sessions, regions = list(table.sessions.values()), list(table.regions.values())
    region = chance.choice(regions) if regions else None
    session = chance.choice(sessions) if sessions else None
    what = chance.randrange(15)
    if session is None or what == 0:
        table.commit(records.Began(table.number(), 100, 7, 1, 1, []))
    elif region is None or what < 4:
        number = table.number()
        name = chance.choice(["a", "b", "c", "d", None])
        table.commit(records.Made(number, name, 1, 4096, -1, 1, 1, 0o600, b""))
        if name is not None and name not in table.names:
            table.commit(records.Published(number, 1))
        table.grant(session, table.regions[number], True, False)
    elif what == 4:
        table.commit(records.Ended(session.number))
    elif what == 5:
        table.grant(session, region, chance.random() < 0.5, chance.random() < 0.5)
    elif what == 6 and region.leases:
        table.release(table.sessions[chance.choice(list(region.leases))], region)
    elif what == 7 and region.linked:
        table.commit(records.Unlinked(region.number, others(table, {region.name}, chance)))
    elif what == 8 and region.draft:
        drafts = {one.name: one.number for one in regions if one.draft and one.name != region.name}
        unlinked = others(table, {region.name, *drafts}, chance)
        more = [(one, 2) for one in drafts.values()]
        table.commit(records.Published(region.number, 2, more, unlinked))
    elif what == 9 and not region.sealed:
        table.commit(records.SealedNow(region.number, ("other life", 5)))
        table.commit(records.Digested(region.number, "ab" * 32))
        table.commit(records.Changed(region.number, 0o640, b"new"))
    elif what == 10:
        fall_asleep(table, session.number, region)
    elif what == 11 and session.asleep:
        table.commit(records.Woke(session.number, chance.choice(list(session.asleep))))
    elif what == 12:
        copy(table, chance.choice(["a", "b"]), chance.choice([1, 2]))
    elif what == 13 and region.linked and region.original is not None:
        awake = table.names.get(region.original)
        if awake is None or awake.uid == region.uid:
            table.commit(records.Kept(region.number, chance.randrange(3)))
    elif what == 14:
        table.commit(records.Left(session.number))


def copy(table: Table, name: str, uid: int) -> None:
    """Publish a sleeper's copy, in place of the user's older one."""
    number = table.number()
    stamp = f"{number:016x}"
    mark = Mark(stamp, GPU)
    older = table.copies.get(name, {}).get(uid)
    made = f"{name}.host/{stamp}"
    table.commit(records.Made(number, made, 1, 4096, -1, uid, uid, 0o600, b""))
    table.commit(records.SealedNow(number, None, mark))
    table.commit(records.Published(number, 1, [], [older.number] if older else []))


def fall_asleep(table: Table, session: int, region: RegionEntry) -> None:
    """Have a session sleep in a region, if it does not."""
    if region.number not in table.sessions[session].asleep:
        slept = records.Slept(session, region.number, str(region.name), region.version, region.uid)
        table.commit(slept)


def others(table: Table, names: set[str | None], chance: random.Random) -> list[int]:
    """Some of the regions that have another name."""
    there = [one.number for name, one in table.names.items() if name not in names]
    return [number for number in there if chance.random() < 0.5]


class TestDeletionInTurns:
    def test_leaves_the_files_of_an_index_that_was_published_meanwhile(self) -> None:
        table = Table(lambda record: None, lambda region: None)
        service = Service(SimpleNamespace(table=table, freed=False), Quotas(), "test", False)
        who = Identity(1, 2, 0, 0, frozenset())
        session, _ = service.begin(who, requests.Hello(1, "test", id=1))

        def publish(count: int) -> None:
            made = []
            index = packb({"format": "checkpoint", "id": "01234567"})
            file = packb({"checkpoint": "m"})
            for number in range(count):
                made.append((table.number(), 1))
                name = f"m/01234567/{number:04}"
                table.commit(records.Made(made[-1][0], name, 1, 1, -1, 0, 0, 0o600, file))
            number = table.number()
            table.commit(records.Made(number, "m", 1, 1, -1, 0, 0, 0o600, index))
            table.commit(records.Published(number, 1, made))

        publish(600)
        work = service.calls()[requests.Delete](session, requests.Delete("m", id=2))
        assert len(table.names) == 600 - 256
        assert next(work) is None
        publish(300)
        assert [answer for answer in work if answer] != []
        assert {f"m/01234567/{number:04}" for number in range(300)} | {"m"} <= table.names.keys()


class TestCopies:
    def test_are_none_of_those_that_are_sealed_after_they_are_published(self) -> None:
        """A user would have two, and the next broker would take the other one."""
        entries: list[bytes] = []
        table = Table(lambda record: None, lambda region: None)
        table.commit(records.Life("00ff" * 8, 1))
        service = Service(SimpleNamespace(table=table, freed=False), Quotas(), "test", False)
        session, _ = service.begin(Identity(1, 2, 7, 7, frozenset()), requests.Hello(1, "t", id=1))
        first = draft(table, session)
        service._seal(session, requests.Seal(first, id=2))
        service._publish(session, requests.Publish(first, id=3))
        second = draft(table, session)
        service._publish(session, requests.Publish(second, id=4))
        service._seal(session, requests.Seal(second, id=5))
        assert table.copies == {"a": {7: table.regions[first]}}
        assert copying(table, entries).go_on(1 << 30)
        assert described(replayed(entries)) == described(table)


def draft(table: Table, session: Session) -> int:
    """A draft that says it is a copy of a region "a"."""
    number, stamp = table.number(), "0123456789abcdef"
    mark = packb({MARK: [stamp, number, GPU]})
    uid = session.identity.uid
    name = f"a.host/{number:016x}"
    table.commit(records.Made(number, name, 1, 4096, -1, uid, uid, 0o600, mark))
    table.grant(session, table.regions[number], True, False)
    return number


class TestVersion:
    """The versions of a name that sleeps go on in the next broker."""

    @pytest.mark.parametrize("version", [0, 5])
    def test_goes_on_from_that_of_the_copy_that_keeps_the_name(self, version: int) -> None:
        table, session = table_of_a_user()
        copied = draft(table, session)
        table.commit(records.SealedNow(copied, mark=Mark("0123456789abcdef", GPU)))
        table.commit(records.Published(copied, 1))
        table.commit(records.Kept(copied, version))
        self.check(table, version)

    def test_goes_on_from_the_highest_that_sleeps(self) -> None:
        table, session = table_of_a_user()
        for region, version in ((100, 3), (101, 5), (102, 4)):
            table.commit(records.Slept(session.number, region, "a", version, 7))
        table.commit(records.Slept(session.number, 103, "a", 9, 8))  # another user's
        self.check(table, 5)

    def check(self, table: Table, newest: int) -> None:
        entries: list[bytes] = []
        assert copying(table, entries).go_on(1 << 30)
        for one in (table, replayed(entries)):
            number = one.number()
            one.apply(records.Made(number, "a", 1, 4096, 0, 7, 7, 0o600, b""))
            assert one.next_version(one.regions[number]) == newest + 1
            woken = newest if one.kept and newest else newest + 1
            assert one.next_version(one.regions[number], woken=True) == woken


def table_of_a_user() -> tuple[Table, Session]:
    """A table without regions, and a session of the user 7."""
    table = Table(lambda record: None, lambda region: None)
    table.commit(records.Life("00ff" * 8, 1))
    table.commit(records.Began(1, 1, 2, 7, 7, []))
    return table, table.sessions[1]


class TestBoundRegion:
    def test_ends_with_a_broker_that_died_before_the_exporter_got_it(self) -> None:
        table, session = table_of_a_user()
        table.commit(records.Made(7, "kv", 1, 4096, -1, 1, 1, 0o600, b"", grace=0.5))
        table.commit(records.Published(7, 1))
        table.commit(records.Bound(7, session.number))
        table.discard_unheld()
        assert (table.regions, table.names) == ({}, {})


class TestCompaction:
    @pytest.mark.parametrize("seeds", [range(start, start + 500) for start in range(0, 2000, 500)])
    def test_copies_the_state_whatever_is_done_to_it_meanwhile(self, seeds: range) -> None:
        for seed in seeds:
            copied_beside_changes(random.Random(seed))


def copied_beside_changes(chance: random.Random) -> None:
    """Change a table before and while it is copied, and check the copy."""
    follow: list[Callable[[records.Record], object]] = []
    table = Table(lambda record: [one(record) for one in follow], lambda region: None)
    table.commit(records.Life("00ff" * 8, 1))
    for _ in range(chance.randrange(40)):
        change(table, chance)
    entries: list[bytes] = []
    compaction = copying(table, entries)
    follow.append(compaction.follow)
    done = False
    while not done:
        for _ in range(chance.randrange(8)):
            change(table, chance)
        done = compaction.go_on(1)
    assert described(replayed(entries)) == described(table)
