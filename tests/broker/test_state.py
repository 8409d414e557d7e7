"""The state: what is in the store at any moment is enough for the next broker."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from gdrpy.broker.server import records, state
from gdrpy.broker.server.journal import Journal
from gdrpy.broker.server.store import Store
from support import open_descriptors
from test_table import described


class State(state.State):
    """A broker's, which ends with the test rather than with the broker's process."""

    made: ClassVar[list[State]] = []

    def __init__(self, store: Store) -> None:
        self.made.append(self)
        super().__init__(store)


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    """As when the brokers' process ends."""
    before = open_descriptors()
    yield
    while State.made:
        kept = State.made.pop()
        await_closed(kept)
        if hasattr(kept, "_journal"):
            kept._journal.close()
    gc.collect()
    for number in set(open_descriptors()) - set(before):
        os.close(int(number))


def await_closed(kept: State) -> None:
    """Until what was freed is closed, lest its thread close what has the number by then."""
    end, last = os.pipe()
    kept._closing.put(last)
    assert os.read(end, 1) == b""
    os.close(end)


class Killed(BaseException):
    """The broker ends here and now."""


class Held(Store):
    """A keeper without a process. ``calls_left`` is after how many calls the broker is killed."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.calls_left = -1
        self.fails: list[OSError] = []
        self.replaced = 0

    def _call(self) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise Killed
        if self.fails:
            raise self.fails.pop()

    def copy(self) -> Held:
        """Another store of the same, as a broker that is killed now leaves it."""
        made = Held()
        made.held = self.recover()
        return made

    def recover(self) -> dict[str, int]:
        return {key: os.dup(fd) for key, fd in self.held.items()}

    def hold(self, key: str, fd: int, patience: float = 0.0) -> None:
        self._call()
        self.drop(key)
        self.held[key] = os.dup(fd)

    def drop(self, key: str) -> None:
        self._call()
        fd = self.held.pop(key, None)
        if fd is not None:
            os.close(fd)

    def replace(self) -> None:
        self.replaced += 1
        self.end()

    def end(self) -> None:
        for fd in self.held.values():
            os.close(fd)
        self.held.clear()


@pytest.fixture
def store() -> Iterator[Held]:
    made = Held()
    yield made
    made.end()


@pytest.fixture(autouse=True)
def often_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals are begun anew after some ten records rather than a megabyte, three at a time."""
    monkeypatch.setattr(state, "_COMPACT_BYTES", 500)
    monkeypatch.setattr(state, "_COMPACT_RATIO", 2)
    monkeypatch.setattr(state, "_COMPACT_SLICE", 3)


def made(number: int, name: str | None = None) -> records.Made:
    return records.Made(number, name, 100, 4096, -1, 0, 0, 0o600, b"metadata")


def add(kept: State, name: str | None, session: int) -> int:
    """A region of the state, as the service makes one."""
    number = kept.table.number()
    fd = os.memfd_create("region")
    os.write(fd, str(number).encode())
    kept.add(made(number, name), fd)
    if name is not None:
        old = kept.table.names.get(name)
        kept.table.commit(records.Published(number, 1 if old is None else old.version + 1))
    kept.table.commit(records.Granted(session, number, True, False))
    return number


def session_of(kept: State) -> int:
    number = kept.table.number()
    kept.table.commit(records.Began(number, os.getpid(), 1, 0, 0, []))
    return number


def work(kept: State, steps: int) -> Iterator[dict[str, Any]]:
    """Much that a broker does; what the state is after each step."""
    session = session_of(kept)
    yield described(kept.table)
    for step in range(steps):
        region = add(kept, f"name-{step % 3}" if step % 4 else None, session)
        if step % 2:
            kept.table.commit(records.Released(session, region))
        if step % 5 == 4 and kept.table.names:
            name = min(kept.table.names)
            kept.table.commit(records.Unlinked(kept.table.names[name].number))
        if step % 7 == 6:
            kept.table.commit(records.Ended(session))
            session = session_of(kept)
        kept.compact()
        yield described(kept.table)


def check_recovered(store: Held, kept: State) -> None:
    """All regions have the memory that is theirs, and the store holds nothing else."""
    for region in kept.table.regions.values():
        assert os.pread(region.fd, 20, 0) == str(region.number).encode()
    journals = [key for key in store.held if key.startswith("j")]
    assert len(journals) == 1
    assert set(store.held) == {*journals, *(f"r{number}" for number in kept.table.regions)}


class TestState:
    def test_is_the_same_for_the_next_broker_after_every_change(self, store: Held) -> None:
        for then in work(State(store), 60):
            copy = store.copy()
            again = State(copy)
            assert described(again.table) == then
            check_recovered(copy, again)
            copy.end()

    def test_of_a_first_broker_has_a_life_of_its_own(self, store: Held) -> None:
        other = Held()
        assert State(store).table.life != State(other).table.life
        assert len(State(store).table.life) == 32
        other.end()

    def test_killed_at_any_call_of_the_store_loses_and_leaks_nothing(self) -> None:
        killed_at, ended = 0, False
        while not ended:
            killed_at += 1
            store = Held()
            kept = State(store)
            store.calls_left = killed_at
            states = [described(kept.table)]
            try:
                states.extend(work(kept, 12))
                ended = True
            except Killed:
                pass
            store.calls_left = -1
            again = State(store)
            found = described(again.table)
            check_recovered(store, again)
            # The step under way happened or did not, up to what nobody can have been told of.
            for number, region in states[-1]["regions"].items():
                if number not in found["regions"]:
                    assert not ended
                    assert region[9] or region[12]  # it was let go of in this step
            assert found["life"] == states[-1]["life"]
            if ended:
                assert found == states[-1]
            store.end()
        assert killed_at > 30

    def test_killed_while_it_starts_is_there_for_the_one_after(self) -> None:
        for killed_at in range(1, 40):
            store = Held()
            before = list(work(State(store), 10))[-1]
            store.calls_left = killed_at
            try:
                State(store)
            except Killed:
                store.calls_left = -1
                again = State(store)
                assert described(again.table) == before
                check_recovered(store, again)
            else:
                break
            finally:
                store.end()
        assert killed_at > 2

    def test_region_whose_memory_is_lost_is_no_more_and_the_others_are(
        self, store: Held, caplog: pytest.LogCaptureFixture
    ) -> None:
        kept = State(store)
        session = session_of(kept)
        lost, unnamed, there = (add(kept, name, session) for name in ("lost", None, "there"))
        for number in (lost, unnamed):
            os.close(store.held.pop(f"r{number}"))
        again = State(store)
        assert set(again.table.regions) == {there}
        assert set(again.table.names) == {"there"}
        assert again.table.used == {-1: 4096}
        assert "region 'lost' is lost" in caplog.text
        assert described(State(store).table) == described(again.table)

    def test_memory_of_no_region_is_given_back(self, store: Held) -> None:
        kept = State(store)
        add(kept, "a", session_of(kept))
        store.held["r999"] = os.memfd_create("nobody's")
        check_recovered(store, State(store))

    def test_end_waits_until_the_thread_that_closes_has_ended(self, store: Held) -> None:
        before = threading.active_count()
        kept = State(store)
        assert threading.active_count() == before + 1
        kept.end()
        State.made.remove(kept)
        assert threading.active_count() == before

    def test_change_is_made_also_when_no_new_journal_can_be_begun(
        self, store: Held, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(generation: int) -> None:
            raise OSError(24, "too many open files")

        kept = State(store)
        with monkeypatch.context() as patched:
            patched.setattr(state.Journal, "empty", refuse)
            *_, then = work(kept, 30)
        assert described(State(store).table) == then

    def test_change_is_made_also_when_the_new_journal_has_no_room_for_it(
        self, store: Held, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append, full = Journal.append, 0

        def append_or_refuse(journal: Journal, entry: bytes) -> None:
            nonlocal full
            if kept._next is not None and journal is kept._next[0]:
                full += 1
                if full % 20 == 0:
                    raise OSError(28, "no space left on device")
            append(journal, entry)

        kept = State(store)
        monkeypatch.setattr(Journal, "append", append_or_refuse)
        for then in work(kept, 60):
            copy = store.copy()
            assert described(State(copy).table) == then
            copy.end()
        assert full >= 60
        assert kept._journal.generation > 2

    def test_copies_some_records_a_turn_however_many_there_are(
        self, store: Held, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append, appended = Journal.append, 0

        def count(journal: Journal, entry: bytes) -> None:
            nonlocal appended
            appended += 1
            append(journal, entry)

        monkeypatch.setattr(Journal, "append", count)
        monkeypatch.setattr(state, "_COMPACT_BYTES", 20_000)
        kept = State(store)
        session = session_of(kept)
        told: list[str] = []
        kept.too_long = lambda: told.append("too long")
        for step in range(300):
            appended = 0
            add(kept, f"name-{step}", session)
            assert appended == 3
        assert told == ["too long"]
        turns, done = 0, False
        while not done:
            appended = 0
            done = kept.compact()
            assert appended <= 3 + 2
            turns += 1
        assert turns >= 300
        assert described(State(store).table) == described(kept.table)

    @pytest.mark.parametrize(("large", "ratio"), [(1 << 20, 4), (2000, 2)], ids=["small", "large"])
    def test_journal_grows_to_a_multiple_of_its_size_when_new(
        self, large: int, ratio: int, store: Held, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(state, "_COMPACT_RATIO", 4)
        monkeypatch.setattr(state, "_LARGE", large)
        kept = State(store)
        due: list[bool] = []
        kept.too_long = lambda: due.append(True)
        session = session_of(kept)
        for step in range(50):
            add(kept, f"name-{step}", session)
        region = kept.table.names["name-0"].number
        for _ in range(2):  # after the second one it is known how large a new one is
            while not due:
                kept.table.commit(records.Changed(region, 0o600, b"metadata"))
            last = kept._journal.size
            while not kept.compact():
                pass
            due.clear()
            new = kept._journal.size
        assert new > 2000
        assert ratio * new < last + 100 < ratio * new + 200

    def test_store_that_is_lost_at_any_call_is_replaced_by_one_that_holds_everything(
        self,
    ) -> None:
        for fails_at in range(1, 40):
            store = Held()
            kept = State(store)
            steps = work(kept, 60)
            for _ in range(fails_at):
                next(steps)
            store.fails = [BrokenPipeError(32, "broken pipe")]
            then = next(steps)
            assert store.replaced == 1
            assert not kept.store_lost
            again = State(store)
            assert described(again.table) == then
            check_recovered(store, again)
            store.end()

    def test_memory_that_no_store_takes_stays_the_caller_s(self, store: Held) -> None:
        kept = State(store)
        before = described(kept.table)
        fd = os.memfd_create("region")
        store.fails = [BrokenPipeError(32, "broken pipe")] * 3
        with pytest.raises(BrokenPipeError):
            kept.add(made(kept.table.number()), fd)
        os.close(fd)
        assert described(kept.table) == before
        assert kept.store_lost
        kept.mend_store("again")
        assert not kept.store_lost
        assert set(store.held) == {"j1"}
